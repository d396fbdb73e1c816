/* A CUDA driver over host memory, for tests where there is no GPU: the same functions, numbers and structures
   as libcuda, so that all but the device itself is the real thing. Settings come from the environment:
   FAKE_CUDA_DEVICES (count), FAKE_CUDA_FIRST (number of the first in its UUID), FAKE_CUDA_DESCRIPTORS=0
   (no file descriptors: IPC handles), FAKE_CUDA_READ_ONLY=0 (no read-only mappings), FAKE_CUDA_BYTES (size of
   the device), FAKE_CUDA_VERSION (of CUDA, 12040 is 12.4), FAKE_CUDA_FAIL (name of a function that fails). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { int type, id; } Location;
typedef struct {
    int type, handle_types;
    Location location;
    void *win32;
    struct { unsigned char a, b; unsigned short c; unsigned char d[4]; } flags;
} Properties;
typedef struct { Location location; int flags; } Access;
typedef struct { char bytes[64]; } Handle;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, MAP_FAILED_ = 205, INVALID_HANDLE = 400, NOT_SUPPORTED = 801, UNIT = 65536 };

#define BLOCKS 64
static struct { char *at; size_t size; int fd; } blocks[BLOCKS]; /* of cuMemAlloc and cuIpcOpenMemHandle */
static int started, depth, live;
static size_t used;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
static int fails(const char *name) {
    const char *text = getenv("FAKE_CUDA_FAIL");
    return text && !strcmp(text, name);
}
#define ENTER() do { if (fails(__func__)) return 999; if (!started) return NOT_INITIALIZED; } while (0)
#define CURRENT() do { ENTER(); if (depth < 1) return INVALID_CONTEXT; } while (0)
static int has_room(size_t size) { return used + size <= (size_t)setting("FAKE_CUDA_BYTES", 1L << 34); }

static void given_back(size_t size) { used -= size < used ? size : used; } /* what others made counts with them */

int fake_live(void) { return live; }
int fake_depth(void) { return depth; }

int cuInit(unsigned flags) {
    if (fails(__func__)) return 999;
    started = 1;
    return flags ? INVALID_VALUE : setting("FAKE_CUDA_DEVICES", 1) < 0 ? NO_DEVICE : OK;
}
int cuGetErrorName(int code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : code == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : code == 999 ? "CUDA_ERROR_UNKNOWN" : NULL;
    return *text ? OK : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : NULL;
    return *text ? OK : INVALID_VALUE;
}
int cuDriverGetVersion(int *version) { *version = setting("FAKE_CUDA_VERSION", 13000); return OK; }
int cuDeviceGetCount(int *count) { ENTER(); *count = setting("FAKE_CUDA_DEVICES", 1); return OK; }
int cuDeviceGet(int *device, int ordinal) {
    ENTER();
    if (ordinal < 0 || ordinal >= setting("FAKE_CUDA_DEVICES", 1)) return INVALID_DEVICE;
    *device = 100 + ordinal; /* a handle, not the ordinal */
    return OK;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER();
    if (device < 100) return INVALID_DEVICE;
    memset(uuid, 0xAB, 16);
    uuid[15] = device - 100 + setting("FAKE_CUDA_FIRST", 0);
    return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER();
    if (device < 100) return INVALID_DEVICE;
    *value = attribute == 102 || attribute == 103 ? setting("FAKE_CUDA_DESCRIPTORS", 1) : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER();
    if (device < 100) return INVALID_DEVICE;
    *context = (void *)(long)device;
    return OK;
}
int cuCtxPushCurrent_v2(void *context) { ENTER(); if (!context) return INVALID_VALUE; depth++; return OK; }
int cuCtxPopCurrent_v2(void **context) { CURRENT(); *context = (void *)1; depth--; return OK; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) {
    CURRENT();
    *total = setting("FAKE_CUDA_BYTES", 1L << 34);
    *free_ = *total - used;
    return OK;
}

static int mapped(int fd, size_t size, u64 *address) {
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].at) {
            char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (at == MAP_FAILED) return MAP_FAILED_;
            blocks[i].at = at, blocks[i].size = size, blocks[i].fd = fd;
            *address = (u64)at;
            live++;
            return OK;
        }
    return OUT_OF_MEMORY;
}
static int unmapped(u64 address) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && (u64)blocks[i].at == address) {
            munmap(blocks[i].at, blocks[i].size);
            close(blocks[i].fd);
            blocks[i].at = NULL;
            live--;
            return OK;
        }
    return INVALID_VALUE;
}
int cuMemAlloc_v2(u64 *address, size_t size) {
    CURRENT();
    if (!has_room(size)) return OUT_OF_MEMORY;
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return OUT_OF_MEMORY;
    used += size;
    return mapped(fd, size, address);
}
int cuMemFree_v2(u64 address) {
    CURRENT();
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && (u64)blocks[i].at == address) given_back(blocks[i].size);
    return unmapped(address);
}
int cuMemcpyHtoD_v2(u64 target, const void *source, size_t size) { CURRENT(); memcpy((void *)target, source, size); return OK; }
int cuMemcpyDtoH_v2(void *target, u64 source, size_t size) { CURRENT(); memcpy(target, (void *)source, size); return OK; }
int cuIpcGetMemHandle(Handle *handle, u64 address) {
    CURRENT();
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && (u64)blocks[i].at == address) {
            memset(handle, 0, sizeof *handle);
            snprintf(handle->bytes, sizeof handle->bytes, "/proc/%d/fd/%d", getpid(), blocks[i].fd);
            return OK;
        }
    return INVALID_VALUE;
}
int cuIpcOpenMemHandle_v2(u64 *address, Handle handle, unsigned flags) {
    CURRENT();
    struct stat found;
    handle.bytes[63] = 0;
    if (flags != 1) return INVALID_VALUE;
    int fd = open(handle.bytes, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found)) return INVALID_HANDLE;
    return mapped(fd, found.st_size, address);
}
int cuIpcCloseMemHandle(u64 address) { CURRENT(); return unmapped(address); }

static int is_right(const Properties *p) {
    return p->type == 1 && p->handle_types == 1 && p->location.type == 1 && p->location.id >= 0 && !p->win32;
}
int cuMemGetAllocationGranularity(size_t *unit, const Properties *wanted, int option) {
    CURRENT();
    if (!is_right(wanted) || option) return INVALID_VALUE;
    *unit = UNIT;
    return OK;
}
int cuMemCreate(u64 *handle, size_t size, const Properties *wanted, u64 flags) {
    CURRENT();
    if (!is_right(wanted) || flags || size % UNIT || !size) return INVALID_VALUE;
    if (!has_room(size)) return OUT_OF_MEMORY;
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return OUT_OF_MEMORY;
    used += size;
    live++;
    *handle = fd + 1000;
    return OK;
}
int cuMemRelease(u64 handle) { ENTER(); live--; return close((int)handle - 1000) ? INVALID_VALUE : OK; }
int cuMemExportToShareableHandle(void *shareable, u64 handle, int type, u64 flags) {
    CURRENT();
    if (type != 1 || flags) return INVALID_VALUE;
    *(int *)shareable = dup((int)handle - 1000);
    return *(int *)shareable < 0 ? INVALID_VALUE : OK;
}
int cuMemImportFromShareableHandle(u64 *handle, void *shareable, int type) {
    CURRENT();
    int fd = dup((int)(long)shareable);
    char name[64], target[64] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (type != 1 || fd < 0 || readlink(name, target, sizeof target - 1) < 0 || !strstr(target, "fake-device")) {
        if (fd >= 0) close(fd);
        return INVALID_VALUE;
    }
    live++;
    *handle = fd + 1000;
    return OK;
}
int cuMemAddressReserve(u64 *address, size_t size, size_t alignment, u64 wanted, u64 flags) {
    CURRENT();
    if (size % UNIT || alignment || wanted || flags) return INVALID_VALUE;
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    live++;
    *address = (u64)at;
    return OK;
}
int cuMemAddressFree(u64 address, size_t size) { ENTER(); live--; return munmap((void *)address, size) ? INVALID_VALUE : OK; }
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
    CURRENT();
    struct stat found;
    if (offset || flags || fstat((int)handle - 1000, &found) || (size_t)found.st_size < size) return INVALID_VALUE;
    void *at = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle - 1000, 0);
    live++;
    return at == MAP_FAILED ? MAP_FAILED_ : OK;
}
int cuMemUnmap(u64 address, size_t size) {
    ENTER();
    live--;
    given_back(size);
    return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED
               ? INVALID_VALUE : OK;
}
int cuMemSetAccess(u64 address, size_t size, const Access *access, size_t count) {
    CURRENT();
    if (count != 1 || access->location.type != 1) return INVALID_VALUE;
    if (access->flags == 1 && !setting("FAKE_CUDA_READ_ONLY", 1)) return NOT_SUPPORTED;
    int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)address, size, protection) ? INVALID_VALUE : OK;
}
