/* nvml.c - see nvml.h. The toolkit's header for it is not always installed and the library itself comes with the driver, so both the few types
 * and the functions are taken by name; every function may be missing in some driver, and is then a reading less. */
#include "worker/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef void *device;
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0, LINKS_MAX = 18 };

static struct {
    int (*init)(void);
    const char *(*error)(int);
    int (*by_uuid)(const char *, device *);
    int (*utilization)(device, struct utilization *);
    int (*memory)(device, struct memory *);
    int (*clock)(device, int, unsigned *), (*clock_max)(device, int, unsigned *);
    int (*power)(device, unsigned *), (*power_limit)(device, unsigned *);
    int (*temperature)(device, int, unsigned *);
    int (*throttle)(device, unsigned long long *);
    int (*pci)(device, struct pci *);
    int (*link)(device, unsigned, unsigned *);
    int (*link_to)(device, unsigned, struct pci *);
    int (*ancestor)(device, device, unsigned *);
    int (*pcie_gen)(device, unsigned *), (*pcie_width)(device, unsigned *);
} nv;

static const struct { const char *name; void **to; bool needed; } functions[] = {
    { "nvmlInit_v2", (void **)&nv.init, true }, { "nvmlErrorString", (void **)&nv.error, true }, { "nvmlDeviceGetHandleByUUID", (void **)&nv.by_uuid, true },
    { "nvmlDeviceGetUtilizationRates", (void **)&nv.utilization, false }, { "nvmlDeviceGetMemoryInfo", (void **)&nv.memory, false },
    { "nvmlDeviceGetClockInfo", (void **)&nv.clock, false }, { "nvmlDeviceGetMaxClockInfo", (void **)&nv.clock_max, false },
    { "nvmlDeviceGetPowerUsage", (void **)&nv.power, false }, { "nvmlDeviceGetEnforcedPowerLimit", (void **)&nv.power_limit, false },
    { "nvmlDeviceGetTemperature", (void **)&nv.temperature, false }, { "nvmlDeviceGetCurrentClocksThrottleReasons", (void **)&nv.throttle, false },
    { "nvmlDeviceGetPciInfo_v3", (void **)&nv.pci, false }, { "nvmlDeviceGetNvLinkState", (void **)&nv.link, false },
    { "nvmlDeviceGetNvLinkRemotePciInfo_v2", (void **)&nv.link_to, false }, { "nvmlDeviceGetTopologyCommonAncestor", (void **)&nv.ancestor, false },
    { "nvmlDeviceGetMaxPcieLinkGeneration", (void **)&nv.pcie_gen, false }, { "nvmlDeviceGetMaxPcieLinkWidth", (void **)&nv.pcie_width, false },
};

int nvml_open(struct error *err)
{
    static bool open;
    if (open) return OK;
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) return error_set(err, E_UNSUPPORTED, "no libnvidia-ml.so.1");
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        *functions[i].to = dlsym(lib, functions[i].name);
        if (*functions[i].to == NULL && functions[i].needed) {
            (void)dlclose(lib);
            return error_set(err, E_UNSUPPORTED, "libnvidia-ml.so.1 has no %s", functions[i].name);
        }
    }
    int rc = nv.init();
    if (rc != 0) {
        (void)error_set(err, E_UNSUPPORTED, "NVML: %.200s", nv.error(rc));
        (void)dlclose(lib);
        return E_UNSUPPORTED;
    }
    open = true;
    return OK;
}

bool nvml_read(const char *uuid, struct gpu_reading *out)
{
    device d;
    struct utilization u;
    struct memory m;
    unsigned v;
    unsigned long long bits;
    *out = (struct gpu_reading){ NAN, NAN, NAN, NAN, NAN, NAN, -1, 0 };
    if (nv.by_uuid(uuid, &d) != 0) return false;
    if (nv.utilization && nv.utilization(d, &u) == 0) out->utilization = u.gpu / 100.0;
    if (nv.memory && nv.memory(d, &m) == 0) out->memory_used_bytes = (int64_t)m.used;
    if (nv.clock && nv.clock(d, CLOCK_SM, &v) == 0) out->sm_clock_mhz = v;
    if (nv.clock_max && nv.clock_max(d, CLOCK_SM, &v) == 0) out->sm_clock_max_mhz = v;
    if (nv.power && nv.power(d, &v) == 0) out->power_w = v / 1000.0;
    if (nv.power_limit && nv.power_limit(d, &v) == 0) out->power_limit_w = v / 1000.0;
    if (nv.temperature && nv.temperature(d, TEMPERATURE_GPU, &v) == 0) out->temperature_c = v;
    if (nv.throttle && nv.throttle(d, &bits) == 0) out->throttle = bits;
    return true;
}

static const struct { uint64_t bit; const char *name; } reasons[] = {
    { 0x4, "power limit" }, { 0x8, "hardware slowdown" }, { 0x10, "kept in step with another card" }, { 0x20, "too hot (software)" },
    { 0x40, "too hot (hardware)" }, { 0x80, "power brake" }, { 0x2, "clocks set by an application" },
};

const char *nvml_throttle_text(uint64_t bits, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0] && at < size; i++)
        if (bits & reasons[i].bit) at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "", reasons[i].name);
    return buf;
}

void nvml_add(cJSON *o, const char *prefix, const struct gpu_reading *r)
{
    const struct { const char *name; double v; } figures[] = {
        { "utilization", r->utilization }, { "power_w", r->power_w }, { "power_limit_w", r->power_limit_w }, { "temperature_c", r->temperature_c },
        { "sm_clock_mhz", r->sm_clock_mhz }, { "sm_clock_max_mhz", r->sm_clock_max_mhz },
    };
    char name[64], text[200];
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        (void)snprintf(name, sizeof name, "%s%s", prefix, figures[i].name);
        if (!isnan(figures[i].v)) json_add_num(o, name, figures[i].v);
    }
    (void)snprintf(name, sizeof name, "%smemory_used_bytes", prefix);
    if (r->memory_used_bytes >= 0) json_add_int(o, name, r->memory_used_bytes);
    (void)snprintf(name, sizeof name, "%sthrottle", prefix);
    if (*nvml_throttle_text(r->throttle, text, sizeof text)) json_add_str(o, name, text);
}

/* Active links of a that end at b; of those that end at none of the n cards, which is a switch, *switched. */
static int links_between(device a, device b, const device *all, int n, int *switched)
{
    struct pci at, remote;
    unsigned active;
    int direct = 0;
    *switched = 0;
    if (nv.pci == NULL || nv.link == NULL || nv.link_to == NULL) return 0;
    for (unsigned i = 0; i < LINKS_MAX; i++) {
        bool card = false;
        if (nv.link(a, i, &active) != 0 || !active || nv.link_to(a, i, &remote) != 0) continue;
        for (int k = 0; k < n; k++) {
            if (nv.pci(all[k], &at) != 0 || remote.domain != at.domain || remote.bus != at.bus || remote.device != at.device) continue;
            card = true;
            direct += all[k] == b;
        }
        *switched += !card;
    }
    return direct;
}

/* Higher is closer. A switch at a link's other end is no neighbour: behind switches all cards are equally near. */
static int nearness(device a, device b)
{
    unsigned level;
    int switched, score = 0;
    if (nv.ancestor && nv.ancestor(a, b, &level) == 0 && level < 100) score = 100 - (int)level;
    return links_between(a, b, &b, 1, &switched) * 1000 + score;
}

void nvml_order(const char uuid[][64], int n, int *order)
{
    enum { MOST = 64 };
    device d[MOST];
    bool used[MOST] = { false };
    for (int i = 0; i < n; i++) order[i] = i;
    if (n < 3 || n > MOST) return;
    for (int i = 0; i < n; i++)
        if (nv.by_uuid(uuid[i], &d[i]) != 0) return;
    used[0] = true;
    for (int k = 1; k < n; k++) {
        int best = -1, most = -1;
        for (int i = 0; i < n; i++) {
            int x = used[i] ? -1 : nearness(d[order[k - 1]], d[i]);
            if (x > most) most = x, best = i;
        }
        order[k] = best;
        used[best] = true;
    }
}

#define NVLINK_BPS 25e9         /* of one link in one direction, versions 2 to 4 */
#define NVLINK_REACHED 0.8
#define PCIE_REACHED 0.7

static double pcie_Bps(device d)
{
    static const double lane[] = { 0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9 };
    unsigned gen = 0, width = 0;
    if (nv.pcie_gen == NULL || nv.pcie_width == NULL || nv.pcie_gen(d, &gen) != 0 || nv.pcie_width(d, &width) != 0 || gen > 6) return 0;
    return lane[gen] * width * PCIE_REACHED;
}

double nvml_link_Bps(const char uuid[][64], int n, const char **how)
{
    enum { MOST = 64 };
    device d[MOST];
    double worst = INFINITY;
    *how = "";
    if (n < 2 || n > MOST) return 0;
    for (int i = 0; i < n; i++)
        if (nv.by_uuid(uuid[i], &d[i]) != 0) return 0;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            int from_a, from_b, direct;
            if (a == b) continue;
            direct = links_between(d[a], d[b], d, n, &from_a);
            (void)links_between(d[b], d[a], d, n, &from_b);
            int wires = direct > 0 ? direct : from_a < from_b ? from_a : from_b;
            double pa = pcie_Bps(d[a]), pb = pcie_Bps(d[b]), bps = wires > 0 ? wires * NVLINK_BPS * NVLINK_REACHED : pa < pb ? pa : pb;
            if (bps >= worst) continue;
            worst = bps;
            *how = wires > 0 ? "NVLink" : "PCIe";
        }
    return worst;
}
