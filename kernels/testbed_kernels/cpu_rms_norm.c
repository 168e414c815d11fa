/* RMSNorm of many rows; see cpu_rms_norm.py. */

#include <math.h>
#include <stdint.h>

void testbed_cpu_rms_norm(
    const float *inputs, const float *weight, int64_t rows, int64_t width, float epsilon,
    float *out)
{
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        const float *from = inputs + row * width;
        float *to = out + row * width;
        float sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += from[i] * from[i];
        float scale = 1 / sqrtf(sum / width + epsilon);
        for (int64_t i = 0; i < width; i++)
            to[i] = from[i] * scale * weight[i];
    }
}
