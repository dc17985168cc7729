/* Mutations of flat plans that know their grammar. */
#include "mutate.h"

#include <string.h>

#include "plan.h"

static const uint32_t entry_bytes[FLAT_TABLES] = {
    1, 8, sizeof(struct flat_facts), sizeof(struct flat_buffer), sizeof(struct flat_array),
    sizeof(struct flat_array), sizeof(struct flat_step), sizeof(struct flat_launch),
    sizeof(struct flat_parameter), sizeof(struct flat_map), 1, sizeof(struct flat_kernel), 4,
    sizeof(struct flat_cubin), sizeof(struct flat_blob), 1,
};

/* The tables of a plan, each anywhere. */
struct view {
    const unsigned char *at[FLAT_TABLES];
    uint32_t count[FLAT_TABLES];
};

struct random {
    uint64_t state;
};

static uint64_t any(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static size_t below(struct random *random, size_t most)
{
    return most ? (size_t)(any(random) % most) : 0;
}

void seal(unsigned char *plan, size_t size)
{
    struct flat_header header;
    size_t checked = offsetof(struct flat_header, tables);
    if (size < sizeof header)
        return;
    memcpy(&header, plan, sizeof header);
    header.total_bytes = size;
    sha256(plan + checked, size - checked, header.digest);
    memcpy(plan, &header, sizeof header);
}

/* False where the bytes are too far from a plan to have tables. */
static int look(struct view *view, const unsigned char *plan, size_t size)
{
    struct flat_header header;
    if (size < sizeof header)
        return 0;
    memcpy(&header, plan, sizeof header);
    for (int i = 0; i < FLAT_TABLES; i++) {
        const struct flat_table *table = &header.tables[i];
        uint64_t bytes = (uint64_t)table->count * table->entry_bytes;
        if (table->entry_bytes != entry_bytes[i] || table->offset > size ||
            bytes > size - table->offset)
            return 0;
        view->at[i] = plan + table->offset;
        view->count[i] = table->count;
    }
    return 1;
}

/* Writes tables one behind the other; 0 where there is no room. `view` is then of what was written. */
static size_t assemble(unsigned char *out, struct view *view)
{
    struct flat_header header = {FLAT_MAGIC, FLAT_VERSION, sizeof header, 0, {0}, {{0, 0, 0}}};
    size_t end = sizeof header;
    for (int i = 0; i < FLAT_TABLES; i++) {
        size_t start = (end + 15) / 16 * 16, bytes = (size_t)view->count[i] * entry_bytes[i];
        if (start + bytes > MOST_BYTES)
            return 0;
        memset(out + end, 0, start - end);
        if (bytes)
            memcpy(out + start, view->at[i], bytes);
        header.tables[i] = (struct flat_table){start, view->count[i], entry_bytes[i]};
        view->at[i] = out + start;
        end = start + bytes;
    }
    header.total_bytes = end;
    memcpy(out, &header, sizeof header);
    return end;
}

/* ---- whole entries and tables */

static void change_table(struct view *view, const struct view *other, unsigned char *scratch,
                         struct random *random)
{
    int table = (int)below(random, FLAT_TABLES);
    size_t width = entry_bytes[table], count = view->count[table];
    size_t entry = below(random, count), second = below(random, count);
    if (other && below(random, 3) == 0) { /* that of another plan, or entries of it */
        if (below(random, 2) || !count || !other->count[table]) {
            view->at[table] = other->at[table];
            view->count[table] = other->count[table];
            return;
        }
        if (count * width > MOST_BYTES / 2)
            return;
        memcpy(scratch, view->at[table], count * width);
        memcpy(scratch + entry * width,
               other->at[table] + below(random, other->count[table]) * width, width);
        view->at[table] = scratch;
        return;
    }
    if (!count || (count + 1) * width > MOST_BYTES / 2)
        return;
    memcpy(scratch, view->at[table], count * width);
    view->at[table] = scratch;
    switch (below(random, 5)) {
    case 0: /* twice */
        memmove(scratch + (entry + 1) * width, scratch + entry * width, (count - entry) * width);
        view->count[table]++;
        break;
    case 1: /* left out */
        memmove(scratch + entry * width, scratch + (entry + 1) * width, (count - entry - 1) * width);
        view->count[table]--;
        break;
    case 2: /* exchanged */
        for (size_t i = 0; i < width; i++) {
            unsigned char held = scratch[entry * width + i];
            scratch[entry * width + i] = scratch[second * width + i];
            scratch[second * width + i] = held;
        }
        break;
    case 3: /* copied over another */
        memmove(scratch + entry * width, scratch + second * width, width);
        break;
    default: /* the table is cut, or gets zeros */
        if (below(random, 2)) {
            view->count[table] = (uint32_t)entry;
        } else {
            memset(scratch + count * width, 0, width);
            view->count[table]++;
        }
    }
}

/* ---- fields */

static uint64_t interesting(struct random *random, uint64_t now, const struct view *view)
{
    static const uint64_t values[] = {
        0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 64, 65, 127, 128, 255, 256, 4095, 4096, 4097, 32764,
        32765, 65535, 65536, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff, 1ull << 32,
        (1ull << 32) + 1, 1ull << 40, 1ull << 60, (1ull << 62) - 1, 1ull << 62, (1ull << 63) - 1,
        1ull << 63, ~0ull - 15, ~0ull,
    };
    switch (below(random, 6)) {
    case 0: return now + 1 + below(random, 4);
    case 1: return now - 1 - below(random, 4);
    case 2: return now ^ 1ull << below(random, 64);
    case 3: return view->count[below(random, FLAT_TABLES)] - below(random, 2);
    case 4: return now * 2 + (below(random, 2) ? 16 : 0);
    default: return values[below(random, sizeof values / sizeof *values)];
    }
}

static void change_number(unsigned char *at, size_t width, struct random *random,
                          const struct view *view)
{
    uint64_t value = 0;
    memcpy(&value, at, width);
    value = interesting(random, value, view);
    memcpy(at, &value, width);
}

static void change_field(unsigned char *out, const struct view *view, struct random *random)
{
    int table = FLAT_NUMBERS + (int)below(random, FLAT_DATA - FLAT_NUMBERS);
    if (!view->count[table] || table == FLAT_VALUES)
        return;
    size_t entry = below(random, view->count[table]), width = entry_bytes[table];
    unsigned char *at = out + (view->at[table] - out) + entry * width;
    size_t field = table == FLAT_MAPS && below(random, 4) == 0 ? 1
                   : width % 8 == 0 && below(random, 2)        ? 8
                                                               : 4;
    change_number(at + below(random, width / field) * field, field, random, view);
}

static void change_header(unsigned char *out, struct random *random, const struct view *view)
{
    size_t place = below(random, 4), table = below(random, FLAT_TABLES);
    struct flat_header *header = NULL;
    unsigned char *row = out + offsetof(struct flat_header, tables) + table * sizeof header->tables[0];
    if (place == 0)
        change_number(out + 4 * below(random, offsetof(struct flat_header, tables) / 4), 4, random,
                      view);
    else if (place == 1)
        change_number(row, 8, random, view);
    else
        change_number(row + 4 + 4 * place, 4, random, view);
}

/* A byte of texts, values or cubins. Half of the changed cubins get the digest that they have. */
static void change_bytes(unsigned char *out, const struct view *view, struct random *random)
{
    static const int tables[] = {FLAT_STRINGS, FLAT_VALUES, FLAT_DATA, FLAT_DATA};
    int table = tables[below(random, 4)];
    if (!view->count[table])
        return;
    unsigned char *bytes = out + (view->at[table] - out);
    /* The beginning of a cubin decides more than its code does. */
    size_t most = table == FLAT_DATA && below(random, 2) ? 64 : view->count[table];
    size_t at = below(random, most < view->count[table] ? most : view->count[table]);
    bytes[at] = (unsigned char)any(random);
    if (table != FLAT_DATA || below(random, 2))
        return;
    for (uint32_t i = 0; i < view->count[FLAT_BLOBS]; i++) {
        unsigned char *place = out + (view->at[FLAT_BLOBS] - out) + i * sizeof(struct flat_blob);
        struct flat_blob blob;
        memcpy(&blob, place, sizeof blob);
        if (!blob.inside || blob.offset > view->count[FLAT_DATA] ||
            blob.size > view->count[FLAT_DATA] - blob.offset)
            continue;
        sha256(bytes + blob.offset, blob.size, blob.sha256);
        memcpy(place, &blob, sizeof blob);
    }
}

size_t mutate(unsigned char *out, const unsigned char *plan, size_t size,
              const unsigned char *other, size_t other_size, uint64_t seed)
{
    static unsigned char scratch[2][MOST_BYTES];
    struct random random = {seed};
    struct view view, second;
    int has_second = look(&second, other, other_size);
    if (size > MOST_BYTES)
        size = MOST_BYTES;
    if (look(&view, plan, size)) {
        for (size_t i = 0; i < 2 && below(&random, 4) == 0; i++)
            change_table(&view, has_second ? &second : NULL, scratch[i], &random);
        size = assemble(out, &view);
        if (!size)
            return 0;
        do {
            size_t kind = below(&random, 16);
            if (kind < 10)
                change_field(out, &view, &random);
            else if (kind < 13)
                change_bytes(out, &view, &random);
            else if (kind < 14)
                change_header(out, &random, &view);
            else
                out[below(&random, size)] ^= (unsigned char)(1 << below(&random, 8));
        } while (below(&random, 3) == 0);
    } else {
        memcpy(out, plan, size);
        for (size_t i = below(&random, 8) + 1; size && i; i--)
            out[below(&random, size)] = (unsigned char)any(&random);
    }
    switch (below(&random, 24)) {
    case 0: size = below(&random, size + 1); break;
    case 1:
        if (size < MOST_BYTES)
            out[size++] = (unsigned char)any(&random);
        break;
    case 2: { /* the end of another plan */
        size_t cut = below(&random, size), from = below(&random, other_size);
        size_t rest = other_size - from < MOST_BYTES - cut ? other_size - from : MOST_BYTES - cut;
        memcpy(out + cut, other + from, rest);
        size = cut + rest;
        break;
    }
    default: break;
    }
    if (below(&random, 16))
        seal(out, size);
    return size;
}
