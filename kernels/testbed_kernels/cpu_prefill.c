/* Attention of many query tokens over the same pages, read in place; see cpu_attention.py. */

#include <float.h>
#include <math.h>
#include <stdint.h>

#ifdef __AVX512F__
#define FLOATS 16
#define TILE 8
#else
#define FLOATS 8
#define TILE 4
#endif
/* Queries attended together, each in its own lane of some vector registers: a number of a key or a
 * value is then the same for all lanes, and neither sums nor maxima run across them. */
#define VECTORS 3
#define LANES (VECTORS * FLOATS)
/* Keys whose scores are kept at once. */
#define CHUNK 64

typedef float vector __attribute__((vector_size(4 * FLOATS)));
typedef union {
    vector part[VECTORS];
    float of[LANES];
} lanes;

/* `count` queries of one key head, from the run's query `row` on; those of a token's `group` query
 * heads follow one another. The softmax runs along with the chunks, as in cpu_decode.c. */
static inline __attribute__((always_inline)) void attend(
    const float *query, const float *keys, const float *values, const int32_t *pages,
    const int64_t *places, const int64_t *firsts, const int64_t *ends, int64_t row, int count,
    int64_t page_size, int64_t kv_heads, int64_t group, int head_dim, float scale, int merge,
    float *out, float *weight)
{
    lanes queries[head_dim], sums[head_dim], shares[CHUNK], highest, total;
    const float *key[CHUNK], *value[CHUNK];
    int64_t at[LANES], first[LANES], end[LANES], lowest = INT64_MAX, last = 0;
    int64_t all_from = 0, all_to = INT64_MAX;
    for (int r = 0; r < LANES; r++) {
        /* Lanes too many repeat the last query. */
        int64_t here = row + (r < count ? r : count - 1), token = here / group;
        at[r] = places[token] * kv_heads * group + here % group;
        first[r] = firsts[token];
        end[r] = ends[token];
        lowest = first[r] < lowest ? first[r] : lowest;
        last = end[r] > last ? end[r] : last;
        all_from = first[r] > all_from ? first[r] : all_from;
        all_to = end[r] < all_to ? end[r] : all_to;
        highest.of[r] = merge ? weight[at[r]] : -FLT_MAX;
        total.of[r] = merge;
        for (int d = 0; d < head_dim; d++)
            queries[d].of[r] = query[at[r] * head_dim + d] * scale;
        for (int d = 0; d < head_dim; d++)
            sums[d].of[r] = merge ? out[at[r] * head_dim + d] : 0;
    }
    /* Chunks begin at multiples of CHUNK, so that what a query adds up when does not depend on its
     * neighbours. */
    for (int64_t start = lowest, stop; start < last; start = stop) {
        stop = (start / CHUNK + 1) * CHUNK;
        stop = stop < last ? stop : last;
        int n = (int)(stop - start);
        for (int t = 0; t < n; t++) {
            int64_t position = start + t;
            int64_t slot = pages[position / page_size] * page_size + position % page_size;
            key[t] = keys + slot * kv_heads * head_dim;
            value[t] = values + slot * kv_heads * head_dim;
        }
        for (int t = n; t % TILE; t++)
            key[t] = key[n - 1];
        for (int t = 0; t < n; t += TILE) {
            lanes dots[TILE] = {0};
            for (int j = 0; j < TILE && t + j < n; j++)
                for (int d = 0; d < head_dim; d += 16)
                    __builtin_prefetch(value[t + j] + d);
            for (int d = 0; d < head_dim; d++)
                for (int j = 0; j < TILE; j++)
                    for (int v = 0; v < VECTORS; v++)
                        dots[j].part[v] += queries[d].part[v] * key[t + j][d];
            for (int j = 0; j < TILE; j++)
                shares[t + j] = dots[j];
        }
        lanes top = highest, kept;
        if (start < all_from || stop > all_to)
            for (int t = 0; t < n; t++)
                for (int r = 0; r < LANES; r++)
                    if (start + t < first[r] || start + t >= end[r])
                        shares[t].of[r] = -FLT_MAX;
        for (int t = 0; t < n; t++)
            for (int r = 0; r < LANES; r++)
                top.of[r] = shares[t].of[r] > top.of[r] ? shares[t].of[r] : top.of[r];
        for (int r = 0; r < LANES; r++)
            kept.of[r] = expf(highest.of[r] - top.of[r]);
        for (int v = 0; v < VECTORS; v++)
            total.part[v] *= kept.part[v];
        highest = top;
        for (int t = 0; t < n; t++)
            for (int r = 0; r < LANES; r++) {
                shares[t].of[r] = expf(shares[t].of[r] - top.of[r]);
                total.of[r] += shares[t].of[r];
            }
        for (int d = 0; d < head_dim; d += TILE) {
            lanes sum[TILE];
            for (int j = 0; j < TILE; j++)
                for (int v = 0; v < VECTORS; v++)
                    sum[j].part[v] = sums[d + j].part[v] * kept.part[v];
            for (int t = 0; t < n; t++)
                for (int j = 0; j < TILE; j++)
                    for (int v = 0; v < VECTORS; v++)
                        sum[j].part[v] += shares[t].part[v] * value[t][d + j];
            for (int j = 0; j < TILE; j++)
                sums[d + j] = sum[j];
        }
    }
    for (int r = 0; r < count; r++) {
        float inverse = 1 / total.of[r];
        for (int d = 0; d < head_dim; d++)
            out[at[r] * head_dim + d] = sums[d].of[r] * inverse;
        weight[at[r]] = highest.of[r] + logf(total.of[r]);
    }
}

/* The tokens of run i, bounds[i] to bounds[i + 1] - 1, read the pages from pages[tables[i]] on. */
void testbed_cpu_prefill(
    const float *query, const float *keys, const float *values, const int32_t *pages,
    const int64_t *tables, const int64_t *bounds, const int64_t *places, const int64_t *firsts,
    const int64_t *ends, int64_t runs, int64_t kv_heads, int64_t group, int64_t head_dim,
    int64_t page_size, int64_t merge, float scale, float *out, float *weight)
{
    int64_t units = 0;
    for (int64_t run = 0; run < runs; run++)
        units += ((bounds[run + 1] - bounds[run]) * group + LANES - 1) / LANES;
#pragma omp parallel for schedule(dynamic)
    for (int64_t unit = 0; unit < units * kv_heads; unit++) {
        int64_t kv_head = unit / units, run = 0, queries, row = unit % units * LANES;
        for (;; run++) {
            queries = (bounds[run + 1] - bounds[run]) * group;
            if (row < queries)
                break;
            row -= (queries + LANES - 1) / LANES * LANES;
        }
        int count = queries - row < LANES ? (int)(queries - row) : LANES;
#define ATTEND(HEAD_DIM)                                                                         \
    attend(query + kv_head * group * head_dim, keys + kv_head * head_dim,                        \
           values + kv_head * head_dim, pages + tables[run], places + bounds[run],               \
           firsts + bounds[run], ends + bounds[run], row, count, page_size, kv_heads, group,     \
           HEAD_DIM, scale, (int)merge, out + kv_head * group * head_dim, weight + kv_head * group)
        if (head_dim == 64)
            ATTEND(64);
        else if (head_dim == 128)
            ATTEND(128);
        else
            ATTEND((int)head_dim);
    }
}
