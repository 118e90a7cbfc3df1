#include "bench/output/format.h"

#include <stdio.h>

number_text format_seconds(double seconds) {
    static const char *const units[] = {"s", "ms", "us", "ns"};
    number_text t;
    int unit = 0;
    while (unit < 3 && seconds < 1) {
        seconds *= 1e3;
        unit++;
    }
    snprintf(t.text, sizeof t.text, "%.*f %s",
             seconds < 10    ? 2
             : seconds < 100 ? 1
                             : 0,
             seconds, units[unit]);
    return t;
}

number_text format_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    number_text t;
    int unit = 0;
    while (unit < 4 && bytes >= 1024) {
        bytes /= 1024;
        unit++;
    }
    snprintf(t.text, sizeof t.text, "%.*f %s", unit ? 1 : 0, bytes, units[unit]);
    return t;
}

number_text format_amount(int64_t count, const char *noun) {
    number_text t;
    snprintf(t.text, sizeof t.text, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return t;
}
