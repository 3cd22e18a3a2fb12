#include <shardrun/transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A transport as it was written against release 1.0 of the headers, whatever they have become. Its groups have one
   member, so that all it does is copy; one group and one op at a time. */

typedef char built_from_1_0[SR_ABI_MAJOR == 1 && SR_ABI_MINOR == 0 ? 1 : -1];

const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0,
                                          SR_KIND_TRANSPORT,   "frozen", "1.0"};

typedef struct frozen {
  sr_plugin plugin;
  const sr_transport_host* host;
  const void* from;
  void* to;
  uint64_t bytes;
  uint64_t moved;
  uint32_t is_aborted;
} frozen;

static int32_t fail(sr_error* error, int32_t status, const char* reason) {
  snprintf(error->text, sizeof(error->text), "%s", reason);
  return status;
}

static int32_t props(void* self, sr_transport_props* props, sr_error* error) {
  (void)self;
  (void)error;
  props->flags = SR_TRANSPORT_SAME_HOST;
  props->memory_kinds = UINT32_C(1) << SR_MEMORY_HOST;
  return SR_OK;
}

static int32_t op_query(void* self, const sr_op* op, uint32_t group_size, sr_op_info* info, sr_error* error) {
  (void)self;
  if (group_size != 1 || op->opcode != SR_OP_ALL_REDUCE) {
    return fail(error, SR_UNIMPLEMENTED, "only an all_reduce of one member");
  }
  info->flags = SR_OP_INFO_NATIVE;
  info->scratch_bytes = 8;
  return SR_OK;
}

/* Meets itself in the host's store, by the host's clock, and opens another of its kind as a wrapper would. */
static int32_t open_frozen(void* self, const sr_transport_config* config, sr_error* error) {
  frozen* me = (frozen*)self;
  const sr_transport_host* host = config->host;
  const sr_plugin* other = NULL;
  char value[16];
  uint64_t bytes = sizeof(value);
  int32_t status = host->store_set(host->self, config->job, config->address, strlen(config->address), error);
  if (status == SR_OK) {
    status = host->store_get(host->self, config->job, value, &bytes, host->now(host->self) + 1000000000, error);
  }
  if (status == SR_OK && (bytes != strlen(config->address) || memcmp(value, config->address, bytes) != 0)) {
    return fail(error, SR_INTERNAL, "the store forgot what it was told");
  }
  if (status == SR_OK && (host->aborted(host->self) != 0 || config->world_size != 1 || config->option_count != 1)) {
    return fail(error, SR_INVALID, "it serves one rank, with one option");
  }
  if (status == SR_OK) {
    status = host->open_transport(host->self, "frozen", &other, error);
  }
  if (status == SR_OK && other->kind != SR_KIND_TRANSPORT) {
    return fail(error, SR_INTERNAL, "what the host opened is no transport");
  }
  me->host = host;
  return status;
}

static int32_t close_transport(void* self, sr_error* error) {
  (void)error;
  ((frozen*)self)->host = NULL;
  return SR_OK;
}

static int32_t stats(void* self, sr_transport_stats* stats, sr_error* error) {
  (void)error;
  stats->wire_bytes = ((frozen*)self)->moved;
  return SR_OK;
}

static int32_t mem_register(void* self, const sr_memory* memory, uint64_t* registration, sr_error* error) {
  (void)self;
  *registration = 7;
  return memory->kind == SR_MEMORY_HOST ? SR_OK : fail(error, SR_INVALID, "only memory of the host");
}

static int32_t mem_deregister(void* self, uint64_t registration, sr_error* error) {
  (void)self;
  return registration == 7 ? SR_OK : fail(error, SR_INVALID, "no such registration");
}

static int32_t group_create(void* self, const sr_group* group, uint64_t* handle, sr_error* error) {
  (void)self;
  *handle = 1;
  return group->member_count == 1 && group->members[0] == 0 ? SR_OK : fail(error, SR_INVALID, "one member");
}

static int32_t group_error(void* self, uint64_t group, sr_error* error) {
  (void)group;
  return ((frozen*)self)->is_aborted ? fail(error, SR_ABORTED, "it was aborted") : SR_OK;
}

static int32_t group_abort(void* self, uint64_t group, const char* reason, sr_error* error) {
  (void)group;
  (void)reason;
  (void)error;
  ((frozen*)self)->is_aborted = 1;
  return SR_OK;
}

static int32_t group_destroy(void* self, uint64_t group, sr_error* error) {
  (void)self;
  return group == 1 ? SR_OK : fail(error, SR_INVALID, "no such group");
}

static int32_t op_prepare(void* self, uint64_t group, const sr_op* ops, uint32_t op_count, uint32_t op_stride,
                          int64_t deadline, uint64_t* handle, sr_error* error) {
  frozen* me = (frozen*)self;
  (void)deadline;
  if (group != 1 || op_count != 1 || op_stride < sizeof(sr_op) || ops->scratch == NULL || ops->scratch->bytes < 8) {
    return fail(error, SR_INVALID, "one op, with its scratch");
  }
  me->from = ops->send->data;
  me->to = ops->recv->data;
  me->bytes = ops->recv->bytes;
  *handle = 1;
  return SR_OK;
}

static int32_t op_start(void* self, uint64_t op, void* queue, int64_t deadline, sr_error* error) {
  frozen* me = (frozen*)self;
  (void)op;
  (void)queue;
  (void)deadline;
  if (me->is_aborted) {
    return fail(error, SR_ABORTED, "it was aborted");
  }
  memmove(me->to, me->from, me->bytes);
  me->moved += me->bytes;
  return SR_OK;
}

static int32_t op_test(void* self, uint64_t op, sr_error* error) {
  (void)op;
  return group_error(self, 1, error);
}

static int32_t op_wait(void* self, uint64_t op, int64_t deadline, sr_error* error) {
  (void)deadline;
  return op_test(self, op, error);
}

static int32_t op_free(void* self, uint64_t op, sr_error* error) {
  (void)self;
  return op == 1 ? SR_OK : fail(error, SR_INVALID, "no such op");
}

static const sr_transport functions = {sizeof(sr_transport),
                                       0,
                                       props,
                                       op_query,
                                       open_frozen,
                                       close_transport,
                                       stats,
                                       mem_register,
                                       mem_deregister,
                                       group_create,
                                       group_error,
                                       group_abort,
                                       group_destroy,
                                       op_prepare,
                                       op_start,
                                       op_test,
                                       op_wait,
                                       op_free};

static const sr_option options[] = {
    {sizeof(sr_option), SR_OPTION_INTEGER, "lanes", "no effect", 1, 1, 4, 0, 0, 0, NULL, NULL, 0, 0}};

static void close_frozen(void* self) { free(self); }

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  frozen* made = (frozen*)calloc(1, sizeof(frozen));
  (void)host;
  if (made == NULL) {
    return fail(error, SR_INTERNAL, "out of memory");
  }
  made->plugin.struct_size = sizeof(sr_plugin);
  made->plugin.kind = SR_KIND_TRANSPORT;
  made->plugin.self = made;
  made->plugin.functions = &functions;
  made->plugin.options = options;
  made->plugin.option_count = 1;
  made->plugin.option_stride = sizeof(sr_option);
  made->plugin.close = close_frozen;
  *plugin = &made->plugin;
  return SR_OK;
}
