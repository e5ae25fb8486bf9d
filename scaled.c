
#include <stdint.h>
void scaled(const double *x, double by, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = by * x[i];
}
