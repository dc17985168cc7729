/* NCCL for the devices of one process: communicators exist, and collectives do nothing. */
#include <stdlib.h>
#include <string.h>

#define NCCL __attribute__((visibility("default"))) int

struct communicator {
    int rank, ranks;
};
struct unique_id {
    char bytes[128];
};

static int make(struct communicator **made, int ranks, int rank)
{
    *made = malloc(sizeof **made);
    (*made)->rank = rank;
    (*made)->ranks = ranks;
    return 0;
}

NCCL ncclGetVersion(int *version)
{
    *version = 22807;
    return 0;
}

NCCL ncclGetUniqueId(struct unique_id *id)
{
    memset(id, 7, sizeof *id);
    return 0;
}

NCCL ncclCommInitRank(struct communicator **made, int ranks, struct unique_id id, int rank)
{
    (void)id;
    return make(made, ranks, rank);
}

NCCL ncclCommInitRankConfig(struct communicator **made, int ranks, struct unique_id id, int rank,
                            void *config)
{
    (void)id, (void)config;
    return make(made, ranks, rank);
}

NCCL ncclCommInitRankScalable(struct communicator **made, int ranks, int rank, int ids,
                              struct unique_id *id, void *config)
{
    (void)ids, (void)id, (void)config;
    return make(made, ranks, rank);
}

NCCL ncclCommCount(struct communicator *of, int *count)
{
    *count = of->ranks;
    return 0;
}

NCCL ncclCommUserRank(struct communicator *of, int *rank)
{
    *rank = of->rank;
    return 0;
}

NCCL ncclCommGetAsyncError(struct communicator *of, int *error)
{
    (void)of;
    *error = 0;
    return 0;
}

NCCL ncclCommRegister(struct communicator *of, void *buffer, size_t bytes, void **handle)
{
    (void)of, (void)buffer, (void)bytes;
    *handle = of;
    return 0;
}

__attribute__((visibility("default"))) const char *ncclGetErrorString(int code)
{
    return code ? "an error of the stand-in for NCCL" : "no error";
}

__attribute__((visibility("default"))) const char *ncclGetLastError(void *of)
{
    (void)of;
    return "";
}

#define NOTHING(name)      \
    NCCL name(void)        \
    {                      \
        return 0;          \
    }
NOTHING(ncclAllGather)
NOTHING(ncclAllReduce)
NOTHING(ncclCommAbort)
NOTHING(ncclCommDeregister)
NOTHING(ncclCommDestroy)
NOTHING(ncclCommFinalize)
NOTHING(ncclGroupEnd)
NOTHING(ncclGroupStart)
NOTHING(ncclReduceScatter)
