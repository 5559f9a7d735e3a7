/* standin.c - a libnvidia-ml.so.1 that returns known values, for nvml.c (the test). NVML_STANDIN: unset four cards in two NVLinked pairs 0-2 and
 * 1-3, the pairs joined by 2-1; "switch": every link ends at a switch; "down": the driver does not start; "poor": most functions fail; "any": every UUID is card 1;
 * "last": a UUID's last digit is its card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

static int mode(const char *name)
{
    const char *v = getenv("NVML_STANDIN");
    return v && strcmp(v, name) == 0;
}
static int number(void *d) { return (int)(size_t)d - 1; }

int nvmlInit_v2(void);
const char *nvmlErrorString(int);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetUtilizationRates(void *, struct utilization *);
int nvmlDeviceGetMemoryInfo(void *, struct memory *);
int nvmlDeviceGetClockInfo(void *, int, unsigned *);
int nvmlDeviceGetPowerUsage(void *, unsigned *);
int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *);
int nvmlDeviceGetTemperature(void *, int, unsigned *);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *);
int nvmlDeviceGetPciInfo_v3(void *, struct pci *);
int nvmlDeviceGetNvLinkState(void *, unsigned, unsigned *);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *, unsigned, struct pci *);
int nvmlDeviceGetTopologyCommonAncestor(void *, void *, unsigned *);
int nvmlDeviceGetMaxPcieLinkGeneration(void *, unsigned *);
int nvmlDeviceGetMaxPcieLinkWidth(void *, unsigned *);

int nvmlInit_v2(void) { return mode("down") ? 9 : 0; }
const char *nvmlErrorString(int rc) { return rc == 9 ? "Driver Not Loaded" : "Unknown Error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **d)
{
    if (mode("any")) {
        *d = (void *)(size_t)2;
        return 0;
    }
    if (mode("last") && *uuid) uuid += strlen(uuid) - 1;
    if (mode("last") && *uuid >= '0' && *uuid <= '3') {
        *d = (void *)(size_t)(*uuid - '0' + 1);
        return 0;
    }
    if (strncmp(uuid, "GPU-", 4) != 0 || uuid[4] < '0' || uuid[4] > '3') return 6;
    *d = (void *)(size_t)(uuid[4] - '0' + 1);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, struct utilization *u) { *u = (struct utilization){ 40 + (unsigned)number(d), 5 }; return mode("poor") ? 3 : 0; }
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m) { (void)d; *m = (struct memory){ 1ull << 37, 1ull << 36, 5000000000ull }; return 0; }
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *v) { (void)d; *v = type == 1 ? 1755 : 2619; return mode("poor") ? 3 : 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { (void)d; *v = 651500; return mode("poor") ? 3 : 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { (void)d; *v = 700000; return mode("poor") ? 3 : 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *v) { (void)d; *v = 64; return sensor != 0 || mode("poor") ? 3 : 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *v) { *v = number(d) == 1 ? 0x4 | 0x40 : 0x1; return mode("poor") ? 3 : 0; }

int nvmlDeviceGetPciInfo_v3(void *d, struct pci *p)
{
    memset(p, 0, sizeof *p);
    p->bus = 0x10 + (unsigned)number(d);
    (void)snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus);
    return 0;
}
/* One link to the partner, and one to the next pair where there is one. */
static int other_end(int from, unsigned link)
{
    static const int ends[4][2] = { { 2, -1 }, { 3, 2 }, { 0, 1 }, { 1, -1 } };
    return link < 2 ? ends[from][link] : -1;
}
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *active)
{
    if (link >= 4) return 2;
    *active = mode("switch") || other_end(number(d), link) >= 0;
    return mode("poor") ? 3 : 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, struct pci *p)
{
    memset(p, 0, sizeof *p);
    p->bus = mode("switch") ? 0x80 : 0x10 + (unsigned)other_end(number(d), link);
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level)
{
    /* without NVLink: 0 and 3 sit on one PCIe switch */
    *level = number(a) + number(b) == 3 ? 20 : 50;
    return mode("poor") || mode("switch") ? 3 : 0;
}
/* Card 3 sits in a narrow slot. */
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return mode("poor") ? 3 : 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { *v = number(d) == 3 ? 8 : 16; return mode("poor") ? 3 : 0; }
