/* Tensor maps: every rule of cuTensorMapEncodeTiled and …Im2col in the CUDA Driver API reference,
 * and an encoding of our own that tests can read back. */
#include "state.h"

#include <string.h>

enum { UINT8, UINT16, UINT32, INT32, UINT64, INT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT32_FTZ,
       TFLOAT32, TFLOAT32_FTZ, U4_ALIGN8, U4_ALIGN16, U6_ALIGN16, TYPES };
enum { INTERLEAVE_NONE, INTERLEAVE_16B, INTERLEAVE_32B };
enum { SWIZZLE_NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B, SWIZZLE_LAST = 6 };
enum { MAP_BYTES = 128, MOST_RANK = 5 };

static const char MAGIC[8] = "standTMA";

/* 128 bytes, in place of the hardware's secret ones; tests/runtime/standin_records.py reads them. */
struct map {
    char magic[8];
    uint64_t address;
    uint64_t strides[4];
    uint32_t dims[5];      /* less one: 2^32 is allowed */
    uint16_t box[5];       /* or channels, pixels, where im2col */
    uint8_t element_strides[5];
    uint8_t kind, rank, type, interleave, swizzle, l2_promotion, oob_fill;
    int16_t corners[6];    /* lower, upper */
    uint8_t padding[26];
};

_Static_assert(sizeof(struct map) == MAP_BYTES, "CUtensorMap has 128 bytes");

struct request {
    int type, interleave, swizzle, l2_promotion, oob_fill;
    uint32_t rank;
    uint64_t address;
    const uint64_t *dims, *strides;
    const uint32_t *element_strides;
};

static unsigned element_bits(int type)
{
    static const unsigned char bits[TYPES] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return bits[type];
}

static int padded_type(int type)
{
    return type == U4_ALIGN16 || type == U6_ALIGN16;
}

static int floating(int type)
{
    return type >= FLOAT16 && type <= TFLOAT32_FTZ;
}

static int known_enums(const struct request *r)
{
    return r->type >= 0 && r->type < TYPES && r->interleave >= 0 && r->interleave <= INTERLEAVE_32B &&
           r->swizzle >= 0 && r->swizzle <= SWIZZLE_LAST && r->l2_promotion >= 0 &&
           r->l2_promotion <= 3 && r->oob_fill >= 0 && r->oob_fill <= 1;
}

static int good_dims(const struct request *r)
{
    unsigned unit = r->interleave == INTERLEAVE_32B || padded_type(r->type) ? 32 : 16;
    for (uint32_t i = 0; i < r->rank; i++) {
        if (!r->dims[i] || r->dims[i] > 1ull << 32)
            return 0;
        if (i + 1 < r->rank && (r->strides[i] % unit || r->strides[i] >= 1ull << 40))
            return 0;
        if ((i || r->interleave) && (!r->element_strides[i] || r->element_strides[i] > 8))
            return 0;
    }
    if (padded_type(r->type) && r->dims[0] % 128)
        return 0;
    if (r->type == U4_ALIGN8 && r->dims[0] % 2)
        return 0;
    return r->address % unit == 0;
}

static int good_combination(const struct request *r)
{
    if (r->interleave == INTERLEAVE_32B && r->swizzle != SWIZZLE_32B)
        return 0;
    if (padded_type(r->type) && (r->swizzle == SWIZZLE_32B || r->swizzle == SWIZZLE_64B))
        return 0;
    if (r->type == U6_ALIGN16 && r->interleave)
        return 0;
    return !r->oob_fill || floating(r->type);
}

/* Bytes of the innermost box as they lie in shared memory. */
static uint64_t inner_bytes(const struct request *r, uint64_t elements)
{
    return padded_type(r->type) ? elements : elements * element_bits(r->type) / 8;
}

static int fits_swizzle(const struct request *r, uint64_t elements)
{
    static const unsigned span[] = {0, 32, 64, 128, 128, 128, 128};
    return r->interleave || !r->swizzle || inner_bytes(r, elements) <= span[r->swizzle];
}

static int check_request(const struct map *map, const struct request *r, uint32_t least_rank)
{
    struct context *context = current_context();
    if (!map || (uint64_t)map % 64 || !r->dims || !r->element_strides || (r->rank > 1 && !r->strides))
        return INVALID_VALUE;
    if (!known_enums(r) || r->rank < least_rank || r->rank > MOST_RANK || (r->interleave && r->rank < 3))
        return INVALID_VALUE;
    if (!good_dims(r) || !good_combination(r))
        return INVALID_VALUE;
    return devices[context->device].major >= 9 ? CUDA_SUCCESS : NOT_SUPPORTED;
}

static void encode(struct map *map, const struct request *r, int kind)
{
    memset(map, 0, sizeof *map);
    memcpy(map->magic, MAGIC, sizeof MAGIC);
    map->kind = (uint8_t)kind;
    map->address = r->address;
    map->rank = (uint8_t)r->rank;
    map->type = (uint8_t)r->type;
    map->interleave = (uint8_t)r->interleave;
    map->swizzle = (uint8_t)r->swizzle;
    map->l2_promotion = (uint8_t)r->l2_promotion;
    map->oob_fill = (uint8_t)r->oob_fill;
    for (uint32_t i = 0; i < r->rank; i++) {
        map->dims[i] = (uint32_t)(r->dims[i] - 1);
        map->element_strides[i] = (uint8_t)r->element_strides[i];
        if (i + 1 < r->rank)
            map->strides[i] = r->strides[i];
    }
}

static int encode_tiled(struct map *map, const struct request *r, const uint32_t *box)
{
    int code = box ? check_request(map, r, 1) : INVALID_VALUE;
    for (uint32_t i = 0; !code && i < r->rank; i++)
        if (!box[i] || box[i] > 256)
            code = INVALID_VALUE;
    if (code)
        return code;
    if (!r->interleave && (uint64_t)box[0] * element_bits(r->type) % 128)
        return INVALID_VALUE;
    if (!fits_swizzle(r, box[0]) || (padded_type(r->type) && box[0] != 128))
        return INVALID_VALUE;
    encode(map, r, 0);
    for (uint32_t i = 0; i < r->rank; i++)
        map->box[i] = (uint16_t)box[i];
    return CUDA_SUCCESS;
}

API cuTensorMapEncodeTiled(struct map *map, int type, uint32_t rank, uint64_t address,
                           const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *element_strides, int interleave, int swizzle,
                           int l2_promotion, int oob_fill)
{
    struct request r = {type, interleave, swizzle, l2_promotion, oob_fill, rank,
                        address, dims, strides, element_strides};
    int code = enter(ID_cuTensorMapEncodeTiled);
    if (!code)
        code = encode_tiled(map, &r, box);
    uint64_t values[] = {address, rank, (uint64_t)type, code ? 0 : content_of(map, sizeof *map)};
    return leave_with(ID_cuTensorMapEncodeTiled, code, 0, values, 4);
}

/* Corners are signed numbers of 16, 8 or 5 bits, by rank; the box between them is not empty. */
static int good_corners(const struct request *r, const int *lower, const int *upper)
{
    static const int limits[] = {32768, 128, 16};
    int limit = limits[r->rank - 3];
    for (uint32_t i = 0; i < r->rank - 2; i++) {
        if (lower[i] < -limit || lower[i] >= limit || upper[i] < -limit || upper[i] >= limit)
            return 0;
        if ((int64_t)r->dims[i + 1] + upper[i] - lower[i] <= 0)
            return 0;
    }
    return 1;
}

static int encode_im2col(struct map *map, const struct request *r, const int *lower,
                         const int *upper, uint32_t channels, uint32_t pixels)
{
    int code = lower && upper ? check_request(map, r, 3) : INVALID_VALUE;
    if (code)
        return code;
    if (!good_corners(r, lower, upper) || !channels || channels > 256 || !pixels || pixels > 1024)
        return INVALID_VALUE;
    if (!fits_swizzle(r, channels) || (padded_type(r->type) && channels != 128))
        return INVALID_VALUE;
    encode(map, r, 1);
    map->box[0] = (uint16_t)channels;
    map->box[1] = (uint16_t)pixels;
    for (uint32_t i = 0; i < r->rank - 2; i++) {
        map->corners[i] = (int16_t)lower[i];
        map->corners[3 + i] = (int16_t)upper[i];
    }
    return CUDA_SUCCESS;
}

API cuTensorMapEncodeIm2col(struct map *map, int type, uint32_t rank, uint64_t address,
                            const uint64_t *dims, const uint64_t *strides, const int *lower,
                            const int *upper, uint32_t channels, uint32_t pixels,
                            const uint32_t *element_strides, int interleave, int swizzle,
                            int l2_promotion, int oob_fill)
{
    struct request r = {type, interleave, swizzle, l2_promotion, oob_fill, rank,
                        address, dims, strides, element_strides};
    int code = enter(ID_cuTensorMapEncodeIm2col);
    if (!code)
        code = encode_im2col(map, &r, lower, upper, channels, pixels);
    uint64_t values[] = {address, rank, (uint64_t)type, code ? 0 : content_of(map, sizeof *map)};
    return leave_with(ID_cuTensorMapEncodeIm2col, code, 0, values, 4);
}

API cuTensorMapReplaceAddress(struct map *map, uint64_t address)
{
    int code = enter(ID_cuTensorMapReplaceAddress);
    if (!code && (!map || (uint64_t)map % 64 || memcmp(map->magic, MAGIC, sizeof MAGIC)))
        code = INVALID_VALUE;
    if (!code && address % (map->interleave == INTERLEAVE_32B || padded_type(map->type) ? 32 : 16))
        code = INVALID_VALUE;
    if (!code)
        map->address = address;
    uint64_t values[] = {address, code ? 0 : content_of(map, sizeof *map)};
    return leave_with(ID_cuTensorMapReplaceAddress, code, 0, values, 2);
}

/* The bytes that a map can reach, from its address to behind its last element. */
int map_extent(const void *bytes_of_map, uint64_t *address, uint64_t *bytes)
{
    struct map map;
    memcpy(&map, bytes_of_map, sizeof map);
    if (memcmp(map.magic, MAGIC, sizeof MAGIC))
        return 0;
    *address = map.address;
    *bytes = ((uint64_t)map.dims[0] + 1) * element_bits(map.type) / 8;
    for (int i = 1; i < map.rank; i++)
        *bytes += map.dims[i] * map.strides[i - 1];
    return 1;
}
