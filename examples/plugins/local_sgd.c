/* Local SGD (Stich 2018, arXiv:1805.09767): every rank trains its own model on its share of the samples. Every H steps
 * all ranks replace their parameters by the mean. Moments stay each rank's own. In C99, without the SDK. */

#include <shardrun/strategy.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE, MEAN };

static int32_t fail(sr_error* error, int32_t status, const char* text) {
  if (error != NULL && error->struct_size >= SR_ERROR_SIZE_1_0) {
    snprintf(error->text, sizeof(error->text), "%s", text);
  }
  return status;
}

/* Arrays have a stride: the host's structs may be larger than those of this header. */ */
static const void* element(const void* array, uint32_t stride, uint32_t index) {
  return (const char*)array + (size_t)stride * index;
}

/* The option "every". The host always delivers it, with its default if the job does not set it. */ */
static uint32_t steps_between_means(const sr_job* job) {
  for (uint32_t i = 0; i < job->option_count; ++i) {
    const sr_option_value* option = element(job->options, job->option_stride, i);
    if (strcmp(option->name, "every") == 0) {
      return (uint32_t)option->integer;
    }
  }
  return 1;
}

/* The name of the only mesh axis; NULL where the mesh has several. */ */
static const char* only_mesh_axis(const sr_job* job) {
  const char* name = "data";
  for (uint32_t i = 0; i < job->mesh_count; ++i) {
    const sr_mesh_axis* axis = element(job->mesh, job->mesh_stride, i);
    if (axis->size == job->ranks) {
      name = axis->name;
    } else if (axis->size != 1) {
      return NULL;
    }
  }
  return name;
}

static int has_axis(const sr_graph* graph, const char* name) {
  for (uint32_t i = 0; i < graph->axis_count; ++i) {
    const sr_axis* axis = element(graph->axes, graph->axis_stride, i);
    if (strcmp(axis->name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

static int32_t make_plan(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* plan,
                         sr_error* error) {
  const char* const data = only_mesh_axis(job);
  (void)self;
  if (!SR_HAS(plan, sr_plan_writer, vary)) {
    return fail(error, SR_INTERNAL, "this shardrun is too old for hooks: it needs ABI 1.1");
  }
  if (!has_axis(graph, "batch")) {
    return fail(error, SR_INVALID, "the model has no axis 'batch', so there are no samples to share out");
  }
  if (data == NULL) {
    return fail(error, SR_INVALID, "it has one mesh axis, but [mesh] splits the ranks over several: give one axis all");
  }
  int32_t status = plan->add_mesh_axis(plan->self, data, job->ranks, error);
  if (status == SR_OK) {
    status = plan->place_axis(plan->self, "batch", &data, 1, error);
  }
  if (status == SR_OK) {
    status = plan->set_bucket_bytes(plan->self, UINT64_C(16) << 20, error);
  }
  if (status == SR_OK) {
    status = plan->vary(plan->self, "*", data, error);
  }
  if (status == SR_OK) {
    status = plan->sync_gradients(plan->self, "*", data, error);
  }
  if (status == SR_OK) {
    status = plan->after_step(plan->self, "*", data, steps_between_means(job), error);
  }
  return status;
}

static int32_t plan_hook(void* self, const sr_job* job, const sr_hook_group* group, const sr_hook_writer* writer,
                         sr_error* error) {
  const sr_exchange sum = {sizeof(sr_exchange), SR_EXCHANGE_ALL_REDUCE, 0, 0};
  (void)self;
  (void)job;
  if (group->hook == SR_HOOK_SYNC_GRADIENTS) {
    return writer->add_call(writer->self, SCALE, error);
  }
  const int32_t status = writer->add_exchange(writer->self, &sum, error);
  return status != SR_OK ? status : writer->add_call(writer->self, MEAN, error);
}

static void scale(const sr_hook_call* call, double factor) {
  float* values = call->buffers[0];
  for (uint64_t i = 0; i < call->elements[0]; ++i) {
    values[i] = (float)(factor * values[i]);
  }
}

/* The gradients are a sum over this rank's samples, divided by the number of all samples. Its own update needs the mean
 * over its own samples. */
static int32_t sync_gradients(void* self, const sr_hook_call* call, sr_error* error) {
  (void)self;
  (void)error;
  if (call->own_samples > 0) {
    scale(call, (double)call->samples / (double)call->own_samples);
  }
  return SR_OK;
}

static int32_t after_step(void* self, const sr_hook_call* call, sr_error* error) {
  (void)self;
  (void)error;
  scale(call, 1.0 / call->group->members);
  return SR_OK;
}

static const sr_option options[] = {
    {.struct_size = sizeof(sr_option),
     .type = SR_OPTION_INTEGER,
     .name = "every",
     .help = "steps between two means of the parameters",
     .default_integer = 8,
     .min_integer = 1,
     .max_integer = 1000000},
};

static const sr_strategy functions = {
    .struct_size = sizeof(sr_strategy),
    .make_plan = make_plan,
    .plan_hook = plan_hook,
    .sync_gradients = sync_gradients,
    .after_step = after_step,
};

static void close_plugin(void* self) { (void)self; }

/* Nothing is kept between calls, so one instance serves for all. */ */
static sr_plugin plugin = {
    .struct_size = sizeof(sr_plugin),
    .kind = SR_KIND_STRATEGY,
    .functions = &functions,
    .options = options,
    .option_count = 1,
    .option_stride = sizeof(sr_option),
    .close = close_plugin,
};

const sr_manifest shardrun_manifest_v1 = {
    .struct_size = sizeof(sr_manifest),
    .magic = SR_MAGIC,
    .major = SR_ABI_MAJOR,
    .minor = SR_ABI_MINOR,
    .min_host_minor = 1,
    .kind = SR_KIND_STRATEGY,
    .name = "local_sgd",
    .version = "1.0",
};

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** opened) {
  (void)host;
  (void)error;
  *opened = &plugin;
  return SR_OK;
}
