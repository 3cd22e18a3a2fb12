#include <shardrun/strategy.h>

/* All ranks along one mesh axis, and everything replicated. */

const sr_manifest shardrun_manifest_v1 = {
    sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0, SR_KIND_STRATEGY, "plain", "1.0", ""};

static int32_t make_plan(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                         sr_error* error) {
  (void)self;
  (void)graph;
  return writer->add_mesh_axis(writer->self, "data", job->ranks, error);
}

static void close_plain(void* self) { (void)self; }

static const sr_strategy functions = {.struct_size = sizeof(sr_strategy), .make_plan = make_plan};
static sr_plugin plain = {sizeof(sr_plugin), SR_KIND_STRATEGY, NULL, &functions, NULL, 0, 0, close_plain};

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  (void)host;
  (void)error;
  *plugin = &plain;
  return SR_OK;
}
