/* The driver's rules for tensor maps, with the messages of specs/artifacts/plan.py. */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>

enum { MOST_RANK = 5, TYPES = 10 };

static const unsigned element_bytes[TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
static const unsigned swizzle_bytes[] = {0, 32, 64, 128};

struct answer {
    char *text;
    size_t capacity;
};

static const char *broken(const struct answer *answer, const char *format, ...) PALLASC_PRINTF(2, 3);

static const char *broken(const struct answer *answer, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(answer->text, answer->capacity, format, values);
    va_end(values);
    return answer->text;
}

static const char *modes(const struct flat_map *m, const struct answer *answer)
{
    if (m->type >= TYPES)
        return broken(answer, "element type %u is unknown", m->type);
    if (m->swizzle > 3)
        return broken(answer, "swizzle %u is unknown", m->swizzle);
    if (m->interleave > 2)
        return broken(answer, "interleave %u is unknown", m->interleave);
    if (m->l2_promotion > 3)
        return broken(answer, "L2 promotion %u is unknown", m->l2_promotion);
    return NULL;
}

static const char *array_rules(const struct flat_map *m, const struct answer *answer)
{
    char text[256];
    unsigned rank = m->rank, step = m->interleave == 2 ? 32 : 16;
    if (rank < 1 || rank > MOST_RANK)
        return broken(answer, "rank %u is not in 1 to 5", rank);
    if (m->offset % step)
        return broken(answer, "it starts at byte %llu, no multiple of %u",
                      (unsigned long long)m->offset, step);
    for (unsigned i = 0; i < rank; i++)
        if (!m->dims[i] || m->dims[i] > 1ull << 32)
            return broken(answer, "sizes %s exceed 2^32 or are zero",
                          numbers_text(text, sizeof text, "()", m->dims, rank));
    for (unsigned i = 0; i + 1 < rank; i++)
        if (m->strides[i] % step || m->strides[i] >= 1ull << 40)
            return broken(answer, "byte strides %s are not all multiples of %u below 2^40",
                          numbers_text(text, sizeof text, "()", m->strides, rank - 1), step);
    for (unsigned i = 0; i < rank; i++)
        if (!m->element_strides[i] || m->element_strides[i] > 8)
            return broken(answer, "element strides %s are not all within 1 to 8",
                          sizes_text(text, sizeof text, "()", m->element_strides, rank));
    return NULL;
}

static const char *box_rules(const struct flat_map *m, const struct answer *answer)
{
    char text[256];
    for (unsigned i = 0; i < m->rank; i++)
        if (!m->box[i] || m->box[i] > 256)
            return broken(answer, "box %s is not within 1 to 256", sizes_text(text, sizeof text, "()", m->box, m->rank));
    unsigned inner = m->box[0] * element_bytes[m->type], swizzle = swizzle_bytes[m->swizzle];
    if (inner % 16)
        return broken(answer, "the inner box of %u bytes is not a multiple of 16 bytes", inner);
    if (swizzle && inner > swizzle)
        return broken(answer, "the inner box of %u bytes is longer than the swizzle of %u", inner,
                      swizzle);
    return NULL;
}

static const char *window_rules(const struct flat_map *m, const struct answer *answer)
{
    if (m->rank < 3)
        return broken(answer, "rank %u is not in 3 to 5", m->rank);
    unsigned spatial = m->rank - 2u;
    int most = 1 << (16 / spatial - 1);
    uint64_t bounds[6];
    int within = 1;
    for (unsigned i = 0; i < 2 * spatial; i++) {
        int bound = i < spatial ? m->lower[i] : m->upper[i - spatial];
        bounds[i] = (uint64_t)(int64_t)bound;
        within = within && bound >= -most && bound < most;
    }
    char text[256];
    if (!within)
        return broken(answer, "window bounds %s are not all within %d to %d",
                      numbers_text(text, sizeof text, "[]", bounds, 2 * (size_t)spatial), -most,
                      most - 1);
    if (!m->channels || m->channels > 256)
        return broken(answer, "%u channels a pixel are not within 1 to 256", m->channels);
    if (!m->pixels || m->pixels > 1024)
        return broken(answer, "%u pixels a column are not within 1 to 1024", m->pixels);
    unsigned inner = m->channels * element_bytes[m->type], swizzle = swizzle_bytes[m->swizzle];
    if (swizzle && inner > swizzle)
        return broken(answer, "%u bytes of channels are longer than the swizzle of %u", inner,
                      swizzle);
    return NULL;
}

/* Fields that the driver does not read must be 0, or two different plans could mean the same. */
static const char *unused(const struct flat_map *m, const struct answer *answer)
{
    uint64_t found = m->reserved | (m->nan_fill & ~1u) | (m->im2col & ~1u);
    for (unsigned i = m->rank; i < MOST_RANK; i++)
        found |= m->dims[i] | m->element_strides[i] | m->box[i] | m->strides[i - 1];
    for (unsigned i = 0; i < 3; i++)
        if (!m->im2col || i + 2 >= m->rank)
            found |= (uint32_t)m->lower[i] | (uint32_t)m->upper[i];
    for (unsigned i = 0; m->im2col && i < MOST_RANK; i++)
        found |= m->box[i];
    if (!m->im2col)
        found |= m->channels | m->pixels;
    return found ? broken(answer, "fields that are not used are not 0") : NULL;
}

const char *broken_rule(const struct flat_map *map, char *text, size_t capacity)
{
    struct answer answer = {text, capacity};
    const char *rule = modes(map, &answer);
    if (!rule)
        rule = array_rules(map, &answer);
    if (!rule)
        rule = map->im2col ? window_rules(map, &answer) : box_rules(map, &answer);
    return rule ? rule : unused(map, &answer);
}
