#include <shardrun/strategy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A strategy as it was written against release 1.0 of the headers, whatever they have become: it reads every field that
   they had, and writes with every function. What it read is its log. */

typedef char built_from_1_0[SR_ABI_MAJOR == 1 && SR_ABI_MINOR == 0 ? 1 : -1];

const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0,
                                          SR_KIND_STRATEGY,    "frozen", "1.0"};

typedef struct frozen {
  sr_plugin plugin;
  const sr_host* host;
} frozen;

static const char* const modes[] = {"wide", "tall"};
static const sr_option options[] = {
    {sizeof(sr_option), SR_OPTION_BOOLEAN, "eager", "a switch", 1, 0, 0, 0, 0, 0, NULL, NULL, 0, 0},
    {sizeof(sr_option), SR_OPTION_INTEGER, "depth", "a number", 2, 1, 8, 0, 0, 0, NULL, NULL, 0, 0},
    {sizeof(sr_option), SR_OPTION_NUMBER, "share", "a share", 0, 0, 0, 0.5, 0, 1, NULL, NULL, 0, 0},
    {sizeof(sr_option), SR_OPTION_TEXT, "mode", "a choice", 0, 0, 0, 0, 0, 0, "wide", modes, 2, 0}};

/* Element `index` of an array that travels with a stride. */
#define AT(type, array, stride, index) \
  ((const type*)(const void*)((const char*)(const void*)(array) + (size_t)(index) * (stride)))

static void log_line(const frozen* self, const char* text) {
  if (SR_HAS(self->host, sr_host, log)) {
    self->host->log(self->host->self, SR_LOG_INFO, text);
  }
}

static void log_job(const frozen* self, const sr_job* job) {
  char line[200];
  uint32_t i = 0;
  snprintf(line, sizeof(line), "job of %u", job->ranks);
  log_line(self, line);
  for (i = 0; i < job->mesh_count; ++i) {
    const sr_mesh_axis* axis = AT(sr_mesh_axis, job->mesh, job->mesh_stride, i);
    snprintf(line, sizeof(line), "mesh %s %u", axis->name, axis->size);
    log_line(self, line);
  }
  for (i = 0; i < job->option_count; ++i) {
    const sr_option_value* value = AT(sr_option_value, job->options, job->option_stride, i);
    snprintf(line, sizeof(line), "option %s %u %d %g %s", value->name, value->type, (int)value->integer, value->number,
             value->text != NULL ? value->text : "-");
    log_line(self, line);
  }
}

static void log_graph(const frozen* self, const sr_graph* graph) {
  char line[200];
  uint32_t i = 0;
  for (i = 0; i < graph->tensor_count; ++i) {
    const sr_tensor* tensor = AT(sr_tensor, graph->tensors, graph->tensor_stride, i);
    snprintf(line, sizeof(line), "tensor %s %u [%d %s] %u bytes, layer %d, tied %u", tensor->name, tensor->kind,
             (int)tensor->shape[tensor->rank - 1], tensor->axes[tensor->rank - 1], (unsigned)tensor->bytes,
             (int)tensor->layer, tensor->tied_set);
    log_line(self, line);
  }
  for (i = 0; i < graph->axis_count; ++i) {
    const sr_axis* axis = AT(sr_axis, graph->axes, graph->axis_stride, i);
    snprintf(line, sizeof(line), "axis %s %d", axis->name, (int)axis->size);
    log_line(self, line);
  }
  for (i = 0; i < graph->cut_point_count; ++i) {
    const sr_cut_point* point = AT(sr_cut_point, graph->cut_points, graph->cut_point_stride, i);
    snprintf(line, sizeof(line), "cut point %s [%d %s] %u bytes, layer %d", point->name, (int)point->shape[0],
             point->axes[0], (unsigned)point->bytes, (int)point->layer);
    log_line(self, line);
  }
  for (i = 0; i < graph->layer_count; ++i) {
    const sr_layer* layer = AT(sr_layer, graph->layers, graph->layer_stride, i);
    snprintf(line, sizeof(line), "layer %s %u bytes, %u %u %u FLOPs", layer->name, (unsigned)layer->parameter_bytes,
             (unsigned)layer->forward_flops, (unsigned)layer->backward_input_flops,
             (unsigned)layer->backward_weight_flops);
    log_line(self, line);
  }
}

static int32_t write_plan(const sr_job* job, const sr_plan_writer* writer, sr_error* error) {
  static const char* const axes[] = {"data", "model"};
  const sr_split by_number = {sizeof(sr_split), 0, NULL, &axes[0], 1, 0};
  const sr_split by_axis = {sizeof(sr_split), 0, "embed", &axes[1], 1, 0};
  uint32_t role = 0;
  int32_t status = writer->add_mesh_axis(writer->self, axes[0], 2, error);
  if (status == SR_OK) {
    status = writer->add_mesh_axis(writer->self, axes[1], job->ranks / 2, error);
  }
  if (status == SR_OK) {
    status = writer->place_axis(writer->self, "batch", axes, 2, error);
  }
  for (role = SR_ROLE_STORE; role <= SR_ROLE_OPTIMIZER && status == SR_OK; ++role) {
    status = writer->place_tensor(writer->self, "w*", role, &by_number, 1, sizeof(by_number), error);
  }
  if (status == SR_OK) {
    status = writer->place_cut_point(writer->self, "*residual", &by_axis, 1, sizeof(by_axis), error);
  }
  return status == SR_OK ? writer->set_bucket_bytes(writer->self, 4096, error) : status;
}

static int32_t make_plan(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                         sr_error* error) {
  if (job->ranks % 2 != 0) {
    snprintf(error->text, sizeof(error->text), "%u ranks are no pairs: make them even", job->ranks);
    return SR_INVALID;
  }
  log_job((const frozen*)self, job);
  log_graph((const frozen*)self, graph);
  return write_plan(job, writer, error);
}

static void close_frozen(void* self) { free(self); }

static const sr_strategy functions = {sizeof(sr_strategy), 0, make_plan};

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  frozen* made = (frozen*)calloc(1, sizeof(frozen));
  if (made == NULL) {
    snprintf(error->text, sizeof(error->text), "out of memory");
    return SR_INTERNAL;
  }
  made->host = host;
  made->plugin.struct_size = sizeof(sr_plugin);
  made->plugin.kind = SR_KIND_STRATEGY;
  made->plugin.self = made;
  made->plugin.functions = &functions;
  made->plugin.options = options;
  made->plugin.option_count = 4;
  made->plugin.option_stride = sizeof(sr_option);
  made->plugin.close = close_frozen;
  *plugin = &made->plugin;
  return SR_OK;
}
