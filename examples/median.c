/* The median of 3 x 3 elements, of which the first and last row and column are ghost cells. */
#include <stdint.h>

static float median_of_9(float *x)
{
    for (int i = 1; i < 9; i++) { /* by insertion */
        float moved = x[i];
        int k = i;
        for (; k > 0 && x[k - 1] > moved; k--)
            x[k] = x[k - 1];
        x[k] = moved;
    }
    return x[4];
}

void median(const float *u, float *out, int64_t rows, int64_t cols)
{
    int64_t wide = cols + 2;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float near[9];
            for (int64_t k = 0; k < 9; k++)
                near[k] = u[(i + k / 3) * wide + j + k % 3];
            out[i * cols + j] = median_of_9(near);
        }
}
