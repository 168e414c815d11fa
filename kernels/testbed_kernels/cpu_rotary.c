/* Rotary position embedding; see cpu_rotary.py. */

#include <stdint.h>

void testbed_cpu_rotary(
    const float *input, const float *cosines, const float *sines, int64_t tokens, int64_t heads,
    int64_t head_dim, int64_t token_stride, int64_t head_stride, float *out)
{
    int64_t half = head_dim / 2;
#pragma omp parallel for
    for (int64_t token = 0; token < tokens; token++) {
        const float *c = cosines + token * head_dim, *s = sines + token * head_dim;
        for (int64_t head = 0; head < heads; head++) {
            const float *x = input + token * token_stride + head * head_stride;
            float *y = out + (token * heads + head) * head_dim;
            for (int64_t d = 0; d < half; d++) {
                y[d] = x[d] * c[d] - x[d + half] * s[d];
                y[d + half] = x[d + half] * c[d + half] + x[d] * s[d + half];
            }
        }
    }
}
