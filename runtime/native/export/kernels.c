/* Select among the variants of a kernel that take the arrays, like runtime/matching/selection.py:
 * variants for the exact architecture come first, then those for its family; among these, those for
 * the model most similar to the GPU. pallasc_prepare rejects variants that a GPU cannot run. */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---- */

static int is_array(const struct array_type *type, const pallasc_tensor *tensor)
{
    if (tensor->rank != type->rank || !tensor->dtype || strcmp(tensor->dtype, type->dtype))
        return 0;
    const int64_t *sizes = type->numbers, *strides = sizes + type->rank;
    int is_empty = 0;
    for (size_t i = 0; i < type->rank; i++) {
        if (tensor->shape[i] != sizes[i])
            return 0;
        is_empty |= !sizes[i];
    }
    int64_t row_major = 1;
    for (size_t i = type->rank; i-- && !is_empty; row_major *= sizes[i])
        if (sizes[i] != 1 && (tensor->strides ? tensor->strides[i] : row_major) != strides[i])
            return 0;
    return 1;
}

static int takes(const struct variant *variant, const pallasc_tensor *tensors, size_t count)
{
    if (variant->array_count != count)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!is_array(&variant->arrays[i], &tensors[i]))
            return 0;
    return 1;
}

/* ---- messages for arrays that do not fit ---- */

enum { TEXT_BYTES = 1024 };

static void add_numbers(char text[TEXT_BYTES], const int64_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        append(text, TEXT_BYTES, i ? ", %lld" : "%lld", (long long)numbers[i]);
}

static int no_variant(const struct kernel *kernel, const pallasc_tensor *tensors, size_t count)
{
    char text[TEXT_BYTES] = "";
    for (size_t i = 0; i < count; i++) {
        append(text, TEXT_BYTES, i ? ", %s[" : "%s[",
               tensors[i].dtype ? tensors[i].dtype : "no dtype");
        add_numbers(text, tensors[i].shape, tensors[i].rank);
        append(text, TEXT_BYTES, "]");
        if (tensors[i].strides && tensors[i].rank) {
            append(text, TEXT_BYTES, " with strides ");
            add_numbers(text, tensors[i].strides, tensors[i].rank);
        }
    }
    return fail(PALLASC_ERROR_ARGUMENT, "The header lists the arrays of each variant.",
                "%s: none of %zu variants takes %s.", kernel->name, kernel->count,
                count ? text : "no arrays");
}

/* ---- GPUs ---- */

static int is_model(const struct variant *variant, const struct device *device)
{
    for (const char *const *model = variant->models; *model; model++) {
        char label[sizeof device->label];
        snprintf(label, sizeof label, "GPU %d (%s, sm_", device->ordinal, *model);
        if (!strncmp(label, device->label, strlen(label)))
            return 1;
    }
    return 0;
}

/* Return whether a GPU is more similar to variant a's model than to b's; in a tie, the first in the
 * table is used. */
static int is_liker(const struct variant *a, const struct variant *b, const struct device *device)
{
    int here = 10 * device->major + device->minor;
    const int ranks[][2] = {
        {a->sm != here, b->sm != here},
        {a->suffix == 'a' ? 0 : a->suffix == 'f' ? 1 : 2,
         b->suffix == 'a' ? 0 : b->suffix == 'f' ? 1 : 2},
        {-a->sm, -b->sm},
        {!is_model(a, device), !is_model(b, device)},
        {abs(a->sm_count - device->sm_count), abs(b->sm_count - device->sm_count)},
    };
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (ranks[i][0] != ranks[i][1])
            return ranks[i][0] < ranks[i][1];
    return 0;
}

/* ---- choosing ---- */

static int open_once(struct variant *variant, pallasc_plan **plan)
{
    *plan = atomic_load_explicit(&variant->opened, memory_order_acquire);
    if (*plan)
        return PALLASC_OK;
    pallasc_plan *made = NULL, *other = NULL;
    int status = pallasc_open(variant->plan, variant->plan_bytes, NULL, NULL, &made);
    if (status)
        return status;
    if (!atomic_compare_exchange_strong(&variant->opened, &other, made)) {
        pallasc_close(made); /* another thread was first */
        made = other;
    }
    *plan = made;
    return PALLASC_OK;
}

/* Selects the most similar variant that a device can run. */
static int choose_once(struct kernel *kernel, int ordinal, const pallasc_tensor *tensors,
                       size_t count, pallasc_plan **plan)
{
    struct device *device = NULL;
    unsigned char is_refused[kernel->count]; /* at least 1 */
    int refused = PALLASC_OK, status = use_device(ordinal, &device);
    if (status)
        return status;
    memset(is_refused, 0, sizeof is_refused);
    for (;;) {
        struct variant *best = NULL;
        for (struct variant *own = kernel->variants; own < kernel->variants + kernel->count; own++)
            if (!is_refused[own - kernel->variants] && takes(own, tensors, count) &&
                (!best || is_liker(own, best, device)))
                best = own;
        if (!best)
            return refused ? refused : no_variant(kernel, tensors, count);
        status = open_once(best, plan);
        if (!status)
            status = pallasc_prepare(*plan, ordinal);
        if (status != PALLASC_ERROR_DEVICE)
            return status;
        refused = status; /* with the message for the last variant */
        is_refused[best - kernel->variants] = 1;
    }
}

/* A variant that is prepared on a device was chosen for it before. */
static int choose(struct kernel *kernel, int device, const pallasc_tensor *tensors, size_t count,
                  pallasc_plan **plan)
{
    for (struct variant *own = kernel->variants; own < kernel->variants + kernel->count; own++) {
        *plan = atomic_load_explicit(&own->opened, memory_order_acquire);
        if (*plan && is_prepared(*plan, device) && takes(own, tensors, count))
            return PALLASC_OK;
    }
    return choose_once(kernel, device, tensors, count, plan);
}

int prepare_kernel(struct kernel *kernel, int device, const pallasc_tensor *arrays, size_t count,
                   size_t *workspace_bytes)
{
    pallasc_plan *plan = NULL;
    int status = choose(kernel, device, arrays, count, &plan);
    if (!status && workspace_bytes)
        *workspace_bytes = pallasc_workspace_bytes(plan);
    return status;
}

int launch_kernel(struct kernel *kernel, int device, const pallasc_tensor *arrays, size_t count,
                  void *workspace, size_t workspace_bytes, void *stream)
{
    pallasc_plan *plan = NULL;
    int status = choose(kernel, device, arrays, count, &plan);
    if (status)
        return status;
    size_t needed = pallasc_workspace_bytes(plan);
    if (workspace_bytes < needed)
        return fail(PALLASC_ERROR_ARGUMENT, "The kernel's function with _prepare returns the size.",
                    "%s: its temporaries take %zu bytes of workspace, and %zu are given.",
                    pallasc_name(plan), needed, workspace_bytes);
    void *buffers[count + 1]; /* the number of a variant's arrays: FLAT_MOST_ARRAYS at most */
    for (size_t i = 0; i < count; i++)
        buffers[i] = arrays[i].data;
    return pallasc_launch(plan, device, buffers, count, needed ? workspace : NULL, stream);
}
