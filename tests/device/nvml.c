/* A driver library for the tests: two cards, the second of which shares the RAM. */
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
static int cards[2] = {1, 2};
#ifndef BROKEN
#define BROKEN 0
#endif
#ifndef NAME
#define NAME "NVIDIA RTX A2000"
#endif
int nvmlInitWithFlags(unsigned flags) { return BROKEN; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
#ifndef OLD
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
#endif
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
    if (index == 2) return 4; /* not permitted */
    *card = &cards[index];
    return 0;
}
int nvmlDeviceGetName(void *card, char *name, unsigned size) {
    strncpy(name, *(int *)card == 1 ? NAME : "NVIDIA GB10", size);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *card, pci *info) {
    memset(info, 0, sizeof *info);
    info->domain = *(int *)card - 1;
    info->bus = 0xc1;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, memory *info) {
    if (*(int *)card == 2) return 3; /* not supported */
    info->total = 6ull << 30;
    info->free = 5ull << 30;
    info->used = 1ull << 30;
    return 0;
}
