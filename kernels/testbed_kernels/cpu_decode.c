/* Decode attention that reads the pages in place; see cpu_attention.py. */

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Keys whose scores are kept at once, and query heads that read them together. */
#define CHUNK 16
#define MAX_HEADS 64
#define FLOATS_PER_LINE 16

/* One row, and the `kv_heads` key heads from `keys` on, each read by `group` query heads. The
 * softmax runs along with the chunks: what was summed up so far shrinks whenever a higher score
 * appears. Memory is what the time goes to, so all heads of a token are read before the next token,
 * and its values are fetched while its scores are computed. */
static inline __attribute__((always_inline)) void attend(
    const float *query, const float *keys, const float *values, const int32_t *pages,
    int64_t first, int64_t end, int64_t page_size, int64_t slot_stride, int kv_heads, int group,
    int head_dim, float scale, float *out, float *weight)
{
    float scores[MAX_HEADS][CHUNK], highest[MAX_HEADS], total[MAX_HEADS];
    int64_t slots[CHUNK];
    int heads = kv_heads * group;
    for (int h = 0; h < heads; h++) {
        highest[h] = -FLT_MAX;
        total[h] = 0;
        for (int d = 0; d < head_dim; d++)
            out[h * head_dim + d] = 0;
    }
    for (int64_t start = first; start < end; start += CHUNK) {
        int count = end - start < CHUNK ? (int)(end - start) : CHUNK;
        for (int t = 0; t < count; t++) {
            int64_t position = start + t;
            int64_t slot = pages[position / page_size] * page_size + position % page_size;
            slots[t] = slot * slot_stride;
        }
        for (int t = 0; t < count; t++) {
            for (int d = 0; d < kv_heads * head_dim; d += FLOATS_PER_LINE)
                __builtin_prefetch(values + slots[t] + d);
            for (int k = 0; k < kv_heads; k++) {
                const float *key = keys + slots[t] + k * head_dim;
                for (int h = k * group; h < (k + 1) * group; h++) {
                    float dot = 0;
                    for (int d = 0; d < head_dim; d++)
                        dot += query[h * head_dim + d] * key[d];
                    scores[h][t] = dot * scale;
                }
            }
        }
        for (int h = 0; h < heads; h++) {
            float top = highest[h], sum = 0;
            for (int t = 0; t < count; t++)
                top = scores[h][t] > top ? scores[h][t] : top;
            for (int t = 0; t < count; t++) {
                scores[h][t] = expf(scores[h][t] - top);
                sum += scores[h][t];
            }
            float kept = expf(highest[h] - top);
            total[h] = total[h] * kept + sum;
            highest[h] = top;
            for (int d = 0; d < head_dim; d++)
                out[h * head_dim + d] *= kept;
        }
        for (int k = 0; k < kv_heads; k++)
            for (int t = 0; t < count; t++) {
                const float *value = values + slots[t] + k * head_dim;
                for (int h = k * group; h < (k + 1) * group; h++)
                    for (int d = 0; d < head_dim; d++)
                        out[h * head_dim + d] += scores[h][t] * value[d];
            }
    }
    for (int h = 0; h < heads; h++) {
        for (int d = 0; d < head_dim; d++)
            out[h * head_dim + d] /= total[h];
        weight[h] = highest[h] + logf(total[h]);
    }
}

/* Row i reads positions firsts[i] to ends[i] - 1, in the pages from pages[tables[i]] on. */
void testbed_cpu_decode(
    const float *query, const float *keys, const float *values, const int32_t *pages,
    const int64_t *tables, const int64_t *firsts, const int64_t *ends, int64_t rows,
    int64_t kv_heads, int64_t group, int64_t head_dim, int64_t page_size, int64_t threads,
    float scale, float *out, float *weight)
{
    /* Few rows are shared out by key heads. */
    int64_t span = group < MAX_HEADS ? MAX_HEADS / group : 1;
    if (rows < 4 * threads)
        span = 1;
    else if (span > kv_heads)
        span = kv_heads;
    int64_t spans = (kv_heads + span - 1) / span;
#pragma omp parallel for schedule(dynamic)
    for (int64_t unit = 0; unit < rows * spans; unit++) {
        int64_t row = unit / spans, kv_head = unit % spans * span;
        int count = kv_heads - kv_head < span ? (int)(kv_heads - kv_head) : (int)span;
        for (int64_t head = 0; head < group; head += MAX_HEADS) {
            int heads = group - head < MAX_HEADS ? (int)(group - head) : MAX_HEADS;
            int64_t place = (row * kv_heads + kv_head) * group + head;
#define ATTEND(HEADS, HEAD_DIM)                                                                  \
    attend(query + place * head_dim, keys + kv_head * head_dim, values + kv_head * head_dim,     \
           pages + tables[row], firsts[row], ends[row], page_size, kv_heads * head_dim, count,   \
           HEADS, HEAD_DIM, scale, out + place * head_dim, weight + place)
            /* The common sizes are known to the compiler. */
            if (head_dim == 64 && heads == 3)
                ATTEND(3, 64);
            else if (head_dim == 64)
                ATTEND(heads, 64);
            else if (head_dim == 128)
                ATTEND(heads, 128);
            else
                ATTEND(heads, (int)head_dim);
        }
    }
}
