#include <shardrun/model.h>
#include <stdio.h>
#include <stdlib.h>

/* A model as it was written against release 1.7 of the headers, whatever they have become: it reads every field that they
   had, and writes with every function. What it read is its log. */

typedef char built_from_1_7[SR_ABI_MAJOR == 1 && SR_ABI_MINOR == 7 ? 1 : -1];

const sr_manifest shardrun_manifest_v1 = {
    sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0, SR_KIND_MODEL, "frozen", "1.7", ""};

typedef struct frozen {
  sr_plugin plugin;
  const sr_host* host;
} frozen;

/* Element `index` of an array that travels with a stride. */
#define AT(type, array, stride, index) \
  ((const type*)(const void*)((const char*)(const void*)(array) + (size_t)(index) * (stride)))

static void log_line(const frozen* self, const char* text) {
  if (SR_HAS(self->host, sr_host, log)) {
    self->host->log(self->host->self, SR_LOG_INFO, text);
  }
}

static void log_job(const frozen* self, const sr_model_job* job) {
  char line[200];
  uint32_t i = 0;
  snprintf(line, sizeof(line), "job: data %u, vocab %d, features %d, outputs %d", job->data, (int)job->vocab,
           (int)job->features, (int)job->outputs);
  log_line(self, line);
  for (i = 0; i < job->option_count; ++i) {
    const sr_option_value* value = AT(sr_option_value, job->options, job->option_stride, i);
    snprintf(line, sizeof(line), "option %s %u %d", value->name, value->type, (int)value->integer);
    log_line(self, line);
  }
}

static int32_t declare(void* self, const sr_model_job* job, const sr_state_writer* writer, sr_error* error) {
  const int64_t shape[] = {job->features, AT(sr_option_value, job->options, job->option_stride, 0)->integer};
  const char* const axes[] = {"features", "mlp"};
  const sr_tensor_type matrix = {sizeof(sr_tensor_type), SR_ELEMENT_F32, shape, axes, 2, 0};
  const sr_tensor_type vector = {sizeof(sr_tensor_type), SR_ELEMENT_F32, shape, axes, 1, 0};
  const sr_state w = {sizeof(sr_state), SR_TENSOR_PARAMETER, "w", &matrix, SR_INITIAL_NORMAL, 1, 0.5, 1, 0};
  const sr_state u = {sizeof(sr_state), SR_TENSOR_STATE, "u", &vector, SR_INITIAL_BUMP, 0, 0.1, -1, 0};
  int32_t status = SR_OK;
  log_job((const frozen*)self, job);
  status = writer->set_layers(writer->self, 2, error);
  status = status == SR_OK ? writer->add_state(writer->self, &w, error) : status;
  return status == SR_OK ? writer->add_state(writer->self, &u, error) : status;
}

static int32_t call(const sr_function_writer* writer, const char* op, uint32_t operand, const sr_attribute* attributes,
                    uint32_t attribute_count, uint32_t* result, sr_error* error) {
  const sr_call made = {sizeof(sr_call), 1, op, &operand, attributes, attribute_count, sizeof(sr_attribute), NULL};
  uint32_t count = 0;
  return writer->call(writer->self, &made, result, 1, &count, error);
}

static const sr_attribute two = {
    .struct_size = sizeof(sr_attribute), .type = SR_ATTRIBUTE_INTEGER, .name = "factor", .integer = 2};
static const sr_attribute one = {
    .struct_size = sizeof(sr_attribute), .type = SR_ATTRIBUTE_NUMBER, .name = "scale", .number = 1};

/* losses: 2 * inputs, and the gradient of their sum, which nothing reads. */
static int32_t write_loss(const frozen* self, const sr_model_job* job, const sr_function_request* request,
                          const sr_function_writer* writer, sr_error* error) {
  const char* const axes[] = {"batch", "features"};
  const int64_t shape[] = {request->rows, job->features};
  const sr_tensor_type row = {sizeof(sr_tensor_type), SR_ELEMENT_F32, shape, axes, 2, 0};
  const sr_tensor_type labels = {sizeof(sr_tensor_type), SR_ELEMENT_I32, shape, axes, 1, 0};
  const sr_tensor_type* type = NULL;
  char line[200];
  uint32_t x = 0, y = 0, sum = 0, gradient = 0, targets = 0;
  if (writer->set_scope(writer->self, "scope", error) != SR_OK || writer->set_layer(writer->self, 0, error) != SR_OK ||
      writer->input(writer->self, "inputs", &row, &x, error) != SR_OK ||
      writer->input(writer->self, "targets", &labels, &targets, error) != SR_OK ||
      call(writer, "scaled", x, &two, 1, &y, error) != SR_OK ||
      writer->cut_point(writer->self, "losses", y, error) != SR_OK ||
      writer->type_of(writer->self, y, &type, error) != SR_OK) {
    return SR_INTERNAL;
  }
  snprintf(line, sizeof(line), "type %u [%d %s]", type->element, (int)type->shape[type->rank - 1],
           type->axes[type->rank - 1]);
  log_line(self, line);
  if (call(writer, "sum_all", y, &one, 1, &sum, error) != SR_OK ||
      writer->gradient(writer->self, sum, &x, 1, &gradient, error) != SR_OK) {
    return SR_INTERNAL;
  }
  return writer->set_losses(writer->self, y, error);
}

static int32_t write_iterate(const sr_function_writer* writer, sr_error* error) {
  uint32_t u = 0, next = 0;
  if (writer->state(writer->self, "u", &u, error) != SR_OK ||
      call(writer, "scaled", u, &two, 1, &next, error) != SR_OK ||
      writer->output(writer->self, "next", next, error) != SR_OK) {
    return SR_INTERNAL;
  }
  return writer->write(writer->self, "u", next, error);
}

static int32_t write_function(void* self, const sr_model_job* job, const sr_function_request* request,
                              const sr_function_writer* writer, sr_error* error) {
  char line[200];
  snprintf(line, sizeof(line), "function %u: %d rows, training %u", request->function, (int)request->rows,
           request->training);
  if (request->function == 1) {
    log_job((const frozen*)self, job);
  }
  log_line((const frozen*)self, line);
  return request->function == 0 ? write_loss((const frozen*)self, job, request, writer, error) : write_iterate(writer, error);
}

static void scale(void* argument, int64_t begin, int64_t end) {
  const sr_kernel_call* const made = (const sr_kernel_call*)argument;
  const sr_tensor_view* const x = AT(sr_tensor_view, made->operands, made->operand_stride, 0);
  const sr_tensor_view* const y = AT(sr_tensor_view, made->results, made->result_stride, 0);
  const int64_t factor = AT(sr_attribute, made->attributes, made->attribute_stride, 0)->integer;
  int64_t i = 0;
  for (i = begin; i < end; ++i) {
    const int64_t at = (i + x->origin[0]) % x->whole[0] * x->strides[0];
    if (x->element == SR_ELEMENT_F64) {
      ((double*)y->data)[i] = (double)factor * ((const double*)x->data)[at];
    } else {
      ((float*)y->data)[i] = (float)factor * ((const float*)x->data)[at];
    }
  }
}

static int32_t kernel(void* self, const sr_kernel_call* made, sr_error* error) {
  const sr_tensor_view* const x = AT(sr_tensor_view, made->operands, made->operand_stride, 0);
  sr_kernel_call copy = *made;
  (void)self;
  (void)error;
  if (made->scratch_bytes != 64 || made->operand_count != 1 || made->result_count != 1 || x->rank != 1) {
    return SR_INTERNAL;
  }
  *(char*)made->scratch = 0;
  made->split(made->self, x->shape[0], 1, scale, &copy);
  return SR_OK;
}

static uint64_t scratch_bytes(void* self, const sr_kernel_call* made) {
  (void)self;
  return AT(sr_tensor_view, made->operands, made->operand_stride, 0)->data == NULL ? 64 : 0;
}

static int32_t gradient(void* self, const sr_gradient_request* request, const sr_function_writer* writer,
                        uint32_t* made, sr_error* error) {
  char line[200];
  snprintf(line, sizeof(line), "gradient of operand %u of %u, factor %d: results %u", request->operand,
           request->operand_count, (int)AT(sr_attribute, request->attributes, request->attribute_stride, 0)->integer,
           request->result_count);
  log_line((const frozen*)self, line);
  return request->operands[0] == 0 || request->results[0] == 0
             ? SR_INTERNAL
             : call(writer, "scaled", request->result_gradients[0], request->attributes, request->attribute_count, made,
                    error);
}

static const sr_option options[] = {{.struct_size = sizeof(sr_option),
                                     .type = SR_OPTION_INTEGER,
                                     .name = "width",
                                     .help = "a number",
                                     .default_integer = 2,
                                     .min_integer = 1,
                                     .max_integer = 8}};
static const sr_function functions[] = {{sizeof(sr_function), SR_FUNCTION_REPEATED, "loss"},
                                        {sizeof(sr_function), SR_FUNCTION_ONCE, "iterate"}};
static const sr_operand operands[] = {{sizeof(sr_operand), SR_ELEMENT_F32, -1, 1}};
static const uint32_t results[] = {0};
static const sr_attribute_spec attributes[] = {{.struct_size = sizeof(sr_attribute_spec),
                                                .type = SR_ATTRIBUTE_INTEGER,
                                                .name = "factor",
                                                .help = "a number",
                                                .min_integer = 1,
                                                .max_integer = 9}};
static const sr_model_op ops[] = {{.struct_size = sizeof(sr_model_op),
                                   .min_operands = 1,
                                   .name = "scaled",
                                   .help = "factor * x",
                                   .rule = "b* -> b*",
                                   .operands = operands,
                                   .result_elements = results,
                                   .attributes = attributes,
                                   .operand_count = 1,
                                   .operand_stride = sizeof(sr_operand),
                                   .result_count = 1,
                                   .attribute_count = 1,
                                   .attribute_stride = sizeof(sr_attribute_spec),
                                   .example_count = 1,
                                   .example_stride = sizeof(sr_attribute),
                                   .example = &two,
                                   .sizes = "b0=5",
                                   .scratch_bytes = scratch_bytes,
                                   .kernel = kernel,
                                   .kernel_f64 = kernel,
                                   .gradient = gradient}};
static const sr_model model = {.struct_size = sizeof(sr_model),
                               .data = SR_DATA_LABELS,
                               .help = "a model of an earlier release",
                               .functions = functions,
                               .function_count = 2,
                               .function_stride = sizeof(sr_function),
                               .declare = declare,
                               .write_function = write_function,
                               .ops = ops,
                               .op_count = 1,
                               .op_stride = sizeof(sr_model_op)};

static void close_plugin(void* self) { free(self); }

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  frozen* made = (frozen*)calloc(1, sizeof(frozen));
  if (made == NULL) {
    snprintf(error->text, sizeof(error->text), "out of memory");
    return SR_INTERNAL;
  }
  made->plugin.struct_size = sizeof(sr_plugin);
  made->plugin.kind = SR_KIND_MODEL;
  made->plugin.self = made;
  made->plugin.functions = &model;
  made->plugin.options = options;
  made->plugin.option_count = 1;
  made->plugin.option_stride = sizeof(sr_option);
  made->plugin.close = close_plugin;
  made->host = host;
  *plugin = &made->plugin;
  return SR_OK;
}
