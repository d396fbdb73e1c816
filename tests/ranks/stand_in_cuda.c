/* The CUDA runtime and cuBLAS over host memory, for tests where there is no GPU. ONNX Runtime's own CUDA and TensorRT
   providers load over it: they read their options, take nodes, place weights, copy, and multiply float32 matrices.
   Their kernels do nothing: no other operator computes. tests/ranks/stand_in.py adds the functions that are missing
   here, which do nothing and succeed. Settings: FAKE_CUDA_DEVICES (count), FAKE_CUDA_BYTES (of
   the largest block), as for fake_cuda.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CUDART
enum { OK = 0, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
static _Thread_local int device;
static _Thread_local char text[80];
static int devices(void) {
    const char *given = getenv("FAKE_CUDA_DEVICES");
    return given ? atoi(given) : 1;
}
static int handle(void **made) { *made = malloc(8); return OK; }
static int given_back(void *made) { free(made); return OK; }

int cudaGetDeviceCount(int *count) { *count = devices(); return OK; }
int cudaGetDevice(int *number) { *number = device; return OK; }
int cudaSetDevice(int number) {
    if (number >= devices()) return INVALID_DEVICE;
    device = number;
    return OK;
}
const char *cudaGetErrorString(int code) {
    snprintf(text, sizeof text, "stand-in error %d on device %d", code, device);
    return text;
}
const char *cudaGetErrorName(int code) { return cudaGetErrorString(code); }
int cudaMalloc(void **address, size_t size) {
    const char *most = getenv("FAKE_CUDA_BYTES");
    if (most && size > strtoull(most, NULL, 10)) return OUT_OF_MEMORY;
    *address = aligned_alloc(256, (size + 255) / 256 * 256);
    return *address ? OK : OUT_OF_MEMORY;
}
int cudaHostAlloc(void **address, size_t size, unsigned flags) {
    *address = aligned_alloc(256, (size + 255) / 256 * 256);
    return *address ? OK : OUT_OF_MEMORY;
}
int cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }
int cudaFree(void *address) { return given_back(address); }
int cudaFreeHost(void *address) { return given_back(address); }
int cudaMemcpy(void *target, const void *source, size_t size, int kind) { memcpy(target, source, size); return OK; }
int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream) {
    memcpy(target, source, size);
    return OK;
}
int cudaMemset(void *target, int value, size_t size) { memset(target, value, size); return OK; }
int cudaMemsetAsync(void *target, int value, size_t size, void *stream) { memset(target, value, size); return OK; }
int cudaMemGetInfo(size_t *free_, size_t *total) { *free_ = 8ul << 30; *total = 16ul << 30; return OK; }
int cudaGetDeviceProperties(char *found, int number) {
    memset(found, 0, 700); /* cudaDeviceProp: a name of 256 bytes, and at 288 the size of the memory */
    strcpy(found, "stand-in");
    *(size_t *)(found + 288) = 16ul << 30;
    return number < devices() ? OK : INVALID_DEVICE;
}
int cudaDeviceGetAttribute(int *value, int attribute, int number) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 8 : 1; /* compute capability 9.0 */
    return OK;
}
int cudaDriverGetVersion(int *version) { *version = 13000; return OK; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return OK; }
int cudaStreamCreate(void **stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return handle(stream); }
int cudaStreamDestroy(void *stream) { return given_back(stream); }
int cudaStreamIsCapturing(void *stream, int *state) { *state = 0; return OK; }
int cudaEventCreate(void **event) { return handle(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return handle(event); }
int cudaEventDestroy(void *event) { return given_back(event); }
void **__cudaRegisterFatBinary(void *binary) { static void *none; return &none; }
#endif

#ifdef CUBLAS
static int made;
int cublasCreate_v2(void **handle) { *handle = &made; return 0; }
int cublasSgemmStridedBatched(void *handle, int turn_a, int turn_b, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long step_a, const float *b, int ldb, long long step_b,
                              const float *beta, float *c, int ldc, long long step_c, int count) {
    for (int batch = 0; batch < count; batch++, a += step_a, b += step_b, c += step_c)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                float sum = 0;
                for (int p = 0; p < k; p++)
                    sum += (turn_a ? a[p + (long)i * lda] : a[i + (long)p * lda]) *
                           (turn_b ? b[j + (long)p * ldb] : b[p + (long)j * ldb]);
                c[i + (long)j * ldc] = *alpha * sum + (*beta ? *beta * c[i + (long)j * ldc] : 0);
            }
    return 0;
}
int cublasSgemm_v2(void *handle, int turn_a, int turn_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                   const float *b, int ldb, const float *beta, float *c, int ldc) {
    return cublasSgemmStridedBatched(handle, turn_a, turn_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
#endif

#ifdef CUBLASLT
static int made;
int cublasLtCreate(void **handle) { *handle = &made; return 0; }
#endif

#ifdef CUDNN
static int made;
int cudnnCreate(void **handle) { *handle = &made; return 0; }
#endif

#ifdef NVINFER
/* C++ objects, of which only the first word is used: a table of functions that do nothing. */
static long none(void) { return 0; }
static void *table[64] = {[0 ... 63] = none};
static void **object = table;
void *getPluginRegistry(void) { return &object; }
#endif
