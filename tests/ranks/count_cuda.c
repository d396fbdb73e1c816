/* Counts some calls of the CUDA runtime, and does what tests/ranks/stand_in_cuda.c does for them. Loaded before it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
static struct { char name[32]; long count; } kinds[MOST];

long counted(const char *name) {
    for (int i = 0; i < MOST && kinds[i].count; i++)
        if (!strcmp(kinds[i].name, name)) return kinds[i].count;
    return 0;
}
static int note(const char *name) {
    int i = 0;
    while (i < MOST - 1 && kinds[i].count && strcmp(kinds[i].name, name)) i++;
    snprintf(kinds[i].name, sizeof kinds[i].name, "%s", name);
    kinds[i].count++;
    return 0;
}
static int copied(void *target, const void *source, size_t size) {
    char name[32];
    snprintf(name, sizeof name, "copy of %zu", size);
    memcpy(target, source, size);
    return note(name);
}
static int handle(void **made, const char *name) {
    *made = malloc(8);
    return note(name);
}

int cudaStreamSynchronize(void *stream) { return note("wait for stream"); }
int cudaDeviceSynchronize(void) { return note("wait for device"); }
int cudaMalloc(void **address, size_t size) {
    *address = aligned_alloc(256, (size + 255) / 256 * 256);
    return note("allocate");
}
int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream) {
    return copied(target, source, size);
}
int cudaMemcpy(void *target, const void *source, size_t size, int kind) { return copied(target, source, size); }
int cudaStreamEndCapture(void *stream, void **graph) { return handle(graph, "end capture"); }
int cudaGraphInstantiate(void **made, void *graph, unsigned long long flags) { return handle(made, "make graph"); }
int cudaGraphLaunch(void *graph, void *stream) { return note("launch graph"); }
