/* A whole model in C that brings two ops: a bigram model whose activation is swish(x) = x / (1 + exp(-x)). */

#include <math.h>
#include <shardrun/model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const sr_manifest shardrun_manifest_v1 = {
    sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0, SR_KIND_MODEL, "swish", "1.0", ""};

/* The ops. Both have the same elements in all operands and in the result. */

static int64_t elements_of(const sr_kernel_call* call) {
  int64_t count = 1;
  for (uint32_t d = 0; d < call->results[0].rank; ++d) {
    count *= call->results[0].shape[d];
  }
  return count;
}

/* A kernel whose real numbers are `real`: x and dy are elements of operand 0 and operand `dy_at`. */
#define KERNEL(name, real, exp, dy_at, formula)                                          \
  static int32_t name(void* self, const sr_kernel_call* call, sr_error* error) {         \
    const real* const xs = (const real*)call->operands[0].data;                          \
    const real* const dys = (const real*)call->operands[dy_at].data;                     \
    real* const ys = (real*)call->results[0].data;                                       \
    const int64_t count = elements_of(call);                                             \
    (void)self;                                                                          \
    (void)error;                                                                         \
    for (int64_t i = 0; i < count; ++i) {                                                \
      const real x = xs[i], dy = dys[i], sigmoid = 1 / (1 + exp(-x));                    \
      (void)dy;                                                                          \
      ys[i] = formula;                                                                   \
    }                                                                                    \
    return SR_OK;                                                                        \
  }

KERNEL(swish_f32, float, expf, 0, x* sigmoid)
KERNEL(swish_f64, double, exp, 0, x* sigmoid)
KERNEL(gradient_f32, float, expf, 1, dy* sigmoid * (1 + x * (1 - sigmoid)))
KERNEL(gradient_f64, double, exp, 1, dy* sigmoid * (1 + x * (1 - sigmoid)))

/* Calls an op with one result. Returns 0 after an error. */
static uint32_t call(const sr_function_writer* writer, const char* op, const uint32_t* operands, uint32_t operand_count,
                     const sr_attribute* attributes, uint32_t attribute_count, sr_error* error) {
  const sr_call made = {sizeof(sr_call), operand_count, op, operands, attributes, attribute_count, sizeof(sr_attribute),
                        NULL};
  uint32_t result = 0;
  uint32_t count = 0;
  return writer->call(writer->self, &made, &result, 1, &count, error) == SR_OK ? result : 0;
}

static int32_t swish_gradient(void* self, const sr_gradient_request* request, const sr_function_writer* writer,
                              uint32_t* gradient, sr_error* error) {
  const uint32_t operands[] = {request->operands[0], request->result_gradients[0]};
  (void)self;
  *gradient = call(writer, "swish_gradient", operands, 2, NULL, 0, error);
  return *gradient != 0 ? SR_OK : SR_INTERNAL;
}

static const sr_operand reals[] = {{sizeof(sr_operand), SR_ELEMENT_F32, 0, 0},
                                   {sizeof(sr_operand), SR_ELEMENT_F32, 0, 0}};
static const sr_model_op ops[] = {{.struct_size = sizeof(sr_model_op),
                                   .name = "swish",
                                   .help = "x / (1 + exp(-x))",
                                   .rule = "b* -> b*",
                                   .operands = reals,
                                   .operand_count = 1,
                                   .operand_stride = sizeof(sr_operand),
                                   .kernel = swish_f32,
                                   .kernel_f64 = swish_f64,
                                   .gradient = swish_gradient},
                                  {.struct_size = sizeof(sr_model_op),
                                   .name = "swish_gradient",
                                   .help = "dy times the derivative of swish at x",
                                   .rule = "b*, b* -> b*",
                                   .operands = reals,
                                   .operand_count = 2,
                                   .operand_stride = sizeof(sr_operand),
                                   .kernel = gradient_f32,
                                   .kernel_f64 = gradient_f64}};

/* The model. */

static const sr_option options[] = {{.struct_size = sizeof(sr_option),
                                     .type = SR_OPTION_INTEGER,
                                     .name = "context",
                                     .help = "tokens of a sample",
                                     .default_integer = 16,
                                     .min_integer = 1,
                                     .max_integer = 1 << 20},
                                    {.struct_size = sizeof(sr_option),
                                     .type = SR_OPTION_INTEGER,
                                     .name = "vocab",
                                     .help = "tokens that there are; from the data where there is any",
                                     .default_integer = 64,
                                     .min_integer = 1,
                                     .max_integer = 1 << 24},
                                    {.struct_size = sizeof(sr_option),
                                     .type = SR_OPTION_INTEGER,
                                     .name = "width",
                                     .help = "numbers that a token becomes",
                                     .default_integer = 64,
                                     .min_integer = 1,
                                     .max_integer = 1 << 20}};

static int64_t option(const sr_model_job* job, const char* name) {
  for (uint32_t i = 0; i < job->option_count; ++i) {
    const sr_option_value* const value =
        (const sr_option_value*)(const void*)((const char*)job->options + (size_t)i * job->option_stride);
    if (strcmp(value->name, name) == 0) {
      return value->integer;
    }
  }
  return 0;
}

static int32_t declare(void* self, const sr_model_job* job, const sr_state_writer* writer, sr_error* error) {
  const int64_t vocab = job->vocab != 0 ? job->vocab : option(job, "vocab");
  const int64_t shape[] = {vocab, option(job, "width")};
  const char* const axes[] = {"vocab", "mlp"};
  const sr_tensor_type type = {sizeof(sr_tensor_type), SR_ELEMENT_F32, shape, axes, 2, 0};
  const sr_state table = {sizeof(sr_state), SR_TENSOR_PARAMETER, "in/table", &type, SR_INITIAL_NORMAL, 0, 1, 0, 0};
  const sr_state weights = {sizeof(sr_state),   SR_TENSOR_PARAMETER, "out/weights", &type,
                            SR_INITIAL_NORMAL, 1,                   0.1,           1,     0};
  int32_t status = writer->set_layers(writer->self, 2, error);
  (void)self;
  status = status == SR_OK ? writer->add_state(writer->self, &table, error) : status;
  return status == SR_OK ? writer->add_state(writer->self, &weights, error) : status;
}

/* The losses: cross_entropy(swish(table[inputs]) weights^T, targets). */
static int32_t write_loss(const sr_function_writer* writer, const sr_tensor_type* tokens, sr_error* error) {
  const sr_attribute product[] = {
      {.struct_size = sizeof(sr_attribute), .type = SR_ATTRIBUTE_INTEGER, .name = "contract", .integer = 1},
      {.struct_size = sizeof(sr_attribute), .type = SR_ATTRIBUTE_INTEGER, .name = "transpose", .integer = 1}};
  uint32_t lookup[2], factors[2], terms[3], losses[3], count = 0;
  const sr_call softmax = {sizeof(sr_call), 3, "softmax_terms", terms, NULL, 0, sizeof(sr_attribute), NULL};
  if (writer->input(writer->self, "inputs", tokens, &lookup[0], error) != SR_OK ||
      writer->set_layer(writer->self, 0, error) != SR_OK ||
      writer->state(writer->self, "in/table", &lookup[1], error) != SR_OK ||
      (factors[0] = call(writer, "embedding", lookup, 2, NULL, 0, error)) == 0 ||
      (factors[0] = call(writer, "swish", factors, 1, NULL, 0, error)) == 0 ||
      writer->set_layer(writer->self, 1, error) != SR_OK ||
      writer->state(writer->self, "out/weights", &factors[1], error) != SR_OK ||
      (terms[0] = call(writer, "matmul", factors, 2, product, 2, error)) == 0 ||
      writer->set_layer(writer->self, 2, error) != SR_OK ||
      writer->input(writer->self, "targets", tokens, &terms[2], error) != SR_OK ||
      (losses[0] = terms[1] = call(writer, "row_max", terms, 1, NULL, 0, error)) == 0 ||
      writer->call(writer->self, &softmax, &losses[1], 2, &count, error) != SR_OK ||
      (losses[0] = call(writer, "token_loss", losses, 3, NULL, 0, error)) == 0) {
    return SR_INTERNAL;
  }
  return writer->set_losses(writer->self, losses[0], error);
}

static int32_t write_function(void* self, const sr_model_job* job, const sr_function_request* request,
                              const sr_function_writer* writer, sr_error* error) {
  const int64_t shape[] = {request->rows, option(job, "context")};
  const char* const axes[] = {"batch", "seq"};
  const sr_tensor_type tokens = {sizeof(sr_tensor_type), SR_ELEMENT_I32, shape, axes, 2, 0};
  (void)self;
  return write_loss(writer, &tokens, error);
}

static const sr_function functions[] = {{sizeof(sr_function), SR_FUNCTION_REPEATED, "loss"}};
static const sr_model model = {.struct_size = sizeof(sr_model),
                               .data = SR_DATA_TOKENS,
                               .help = "a bigram model with an activation of its own, in C",
                               .functions = functions,
                               .function_count = 1,
                               .function_stride = sizeof(sr_function),
                               .declare = declare,
                               .write_function = write_function,
                               .ops = ops,
                               .op_count = 2,
                               .op_stride = sizeof(sr_model_op)};

static void close_plugin(void* self) { free(self); }

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  sr_plugin* const made = (sr_plugin*)calloc(1, sizeof(sr_plugin));
  (void)host;
  if (made == NULL) {
    snprintf(error->text, sizeof(error->text), "out of memory");
    return SR_INTERNAL;
  }
  *made = (sr_plugin){sizeof(sr_plugin), SR_KIND_MODEL,     made, &model, options, sizeof(options) / sizeof(options[0]),
                      sizeof(sr_option), close_plugin};
  *plugin = made;
  return SR_OK;
}
