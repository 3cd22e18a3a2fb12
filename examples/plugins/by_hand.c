/* An engine in C: the network relu(x · W0) · W1, data parallel, with each loop written out. */

#include <math.h>
#include <shardrun/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const sr_manifest shardrun_manifest_v1 = {
    sizeof(sr_manifest), SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 0, SR_KIND_ENGINE, "by_hand", "1.0", ""};

static const char* const names[] = {"layer_0/weights", "layer_1/weights"};

typedef struct {
  const sr_ranks* ranks;
  int64_t features, hidden, outputs, rows;
  float* weights[2]; /* owned by the host */
  float *x, *h;      /* of the latest forward: [rows, features] and [rows, hidden] */
} network;

static int32_t fail(sr_error* error, const char* text) {
  snprintf(error->text, sizeof(error->text), "%s", text);
  return SR_INTERNAL;
}

/* c[m, n] = a · b. Element (i, k) of a is a[i * ai + k * ak]; element (k, j) of b is b[k * bk + j * bj]. */
static void multiply(int64_t m, int64_t n, int64_t inner, const float* a, int64_t ai, int64_t ak, const float* b,
                     int64_t bk, int64_t bj, float* c) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < inner; ++k) {
        sum += a[i * ai + k * ak] * b[k * bk + j * bj];
      }
      c[i * n + j] = sum;
    }
  }
}

static int32_t declare(void* self, const sr_engine_job* job, const sr_parameter_writer* writer, sr_error* error) {
  const int64_t hidden = job->options[0].integer;
  const int64_t shapes[2][2] = {{job->features, hidden}, {hidden, job->outputs}};
  int32_t status = SR_OK;
  (void)self;
  for (int p = 0; p < 2 && status == SR_OK; ++p) {
    const sr_engine_parameter parameter = {
        sizeof(parameter), 1, names[p], shapes[p], NULL, NULL, 2, 1, sqrt(2.0 / (double)shapes[p][0])};
    status = writer->add_parameter(writer->self, &parameter, error);
  }
  return status;
}

static int32_t create(void* self, const sr_engine_job* job, const sr_named_array* parameters, uint32_t count,
                      uint32_t stride, const sr_ranks* ranks, void** engine, sr_error* error) {
  network* const made = (network*)calloc(1, sizeof(network));
  (void)self;
  if (made == NULL) {
    return fail(error, "out of memory");
  }
  made->ranks = ranks;
  made->features = job->features;
  made->hidden = job->options[0].integer;
  made->outputs = job->outputs;
  for (uint32_t p = 0; p < count; ++p) {
    const sr_named_array* const each =
        (const sr_named_array*)(const void*)((const char*)parameters + (size_t)stride * p);
    made->weights[p] = (float*)each->array->data;
  }
  *engine = made;
  return SR_OK;
}

static void destroy(void* self, void* engine) {
  network* const net = (network*)engine;
  (void)self;
  free(net->x);
  free(net->h);
  free(net);
}

static int32_t load_checkpoint(void* self, void* engine, const sr_named_array* tensors, uint32_t count, uint32_t stride,
                               sr_error* error) {
  network* const net = (network*)engine;
  const int64_t sizes[] = {net->features * net->hidden, net->hidden * net->outputs};
  int found = 0;
  (void)self;
  for (uint32_t t = 0; t < count; ++t) {
    const sr_named_array* const each = (const sr_named_array*)(const void*)((const char*)tensors + (size_t)stride * t);
    for (int p = 0; p < 2; ++p) {
      if (strcmp(each->name, names[p]) == 0 && each->array->rank == 2 &&
          each->array->shape[0] * each->array->shape[1] == sizes[p]) {
        memcpy(net->weights[p], each->array->data, (size_t)sizes[p] * sizeof(float));
        ++found;
      }
    }
  }
  return found == 2 ? SR_OK
                    : fail(error, "the file lacks layer_0/weights or layer_1/weights, or they have other sizes");
}

static int32_t forward(void* self, void* engine, const sr_array* input, const sr_array_maker* output, sr_error* error) {
  network* const net = (network*)engine;
  const int64_t rows = input->shape[0];
  const int64_t shape[] = {rows, net->outputs};
  const sr_array like = {sizeof(like), SR_ELEMENT_F32, shape, NULL, 2, 0};
  void* result = NULL;
  (void)self;
  free(net->x);
  free(net->h);
  net->rows = rows;
  net->x = (float*)malloc((size_t)(rows * net->features + 1) * sizeof(float));
  net->h = (float*)malloc((size_t)(rows * net->hidden + 1) * sizeof(float));
  if (net->x == NULL || net->h == NULL) {
    return fail(error, "out of memory");
  }
  if (rows > 0) {
    memcpy(net->x, input->data, (size_t)(rows * net->features) * sizeof(float));
  }
  multiply(rows, net->hidden, net->features, net->x, net->features, 1, net->weights[0], net->hidden, 1, net->h);
  for (int64_t i = 0; i < rows * net->hidden; ++i) {
    net->h[i] = net->h[i] > 0 ? net->h[i] : 0;
  }
  if (output->make(output->self, &like, &result, error) != SR_OK) {
    return SR_INTERNAL;
  }
  multiply(rows, net->outputs, net->hidden, net->h, net->hidden, 1, net->weights[1], net->outputs, 1, (float*)result);
  return SR_OK;
}

/* Makes no memory: the result of all_reduce replaces its input. */
static int32_t in_place(void* self, const sr_array* like, void** data, sr_error* error) {
  (void)like;
  (void)error;
  *data = self;
  return SR_OK;
}

static int32_t add_up(const network* net, const sr_array* array, float* from, sr_error* error) {
  const sr_array_maker maker = {sizeof(maker), 0, array->data, in_place};
  sr_array own = *array;
  own.data = from;
  return net->ranks->all_reduce(net->ranks->self, &own, SR_RANKS_SUM, &maker, error);
}

static int32_t backward(void* self, void* engine, const sr_array* gradient, const sr_named_array* gradients,
                        uint32_t count, uint32_t stride, sr_error* error) {
  const network* const net = (const network*)engine;
  const sr_array* const dw0 = gradients->array;
  const sr_array* const dw1 = ((const sr_named_array*)(const void*)((const char*)gradients + stride))->array;
  const float* const dy = (const float*)gradient->data;
  const int64_t f = net->features, h = net->hidden, o = net->outputs, rows = net->rows;
  float* const own = (float*)malloc((size_t)(rows * h + f * h + h * o) * sizeof(float));
  float *const dz = own, *const sum0 = own + rows * h, *const sum1 = sum0 + f * h;
  (void)self;
  (void)count;
  if (own == NULL) {
    return fail(error, "out of memory");
  }
  multiply(h, o, rows, net->h, 1, h, dy, o, 1, sum1);
  multiply(rows, h, o, dy, o, 1, net->weights[1], 1, o, dz);
  for (int64_t i = 0; i < rows * h; ++i) {
    dz[i] = net->h[i] > 0 ? dz[i] : 0;
  }
  multiply(f, h, rows, net->x, 1, f, dz, h, 1, sum0);
  int32_t status = add_up(net, dw0, sum0, error);
  if (status == SR_OK) {
    status = add_up(net, dw1, sum1, error);
  }
  free(own);
  return status;
}

/* The latest record. */
typedef struct {
  int64_t shape[2];
  float* values;
} record;

static int32_t make_record(void* self, const sr_array* like, void** data, sr_error* error) {
  record* const to = (record*)self;
  float* const values = (float*)realloc(to->values, (size_t)(like->shape[0] * like->shape[1] + 1) * sizeof(float));
  if (values == NULL) {
    return fail(error, "out of memory");
  }
  memcpy(to->shape, like->shape, sizeof(to->shape));
  to->values = values;
  *data = values;
  return SR_OK;
}

static int32_t infer(void* self, void* engine, const sr_records* records, sr_error* error) {
  record input = {{0, 0}, NULL}, result = {{0, 0}, NULL};
  const sr_array_maker read = {sizeof(read), 0, &input, make_record};
  const sr_array_maker predict = {sizeof(predict), 0, &result, make_record};
  uint32_t found = 0;
  int32_t status = SR_OK;
  while (status == SR_OK && (status = records->next(records->self, &read, &found, error)) == SR_OK && found == 1) {
    const sr_array x = {sizeof(x), SR_ELEMENT_F32, input.shape, input.values, 2, 0};
    status = forward(self, engine, &x, &predict, error);
    if (status == SR_OK) {
      const sr_array y = {sizeof(y), SR_ELEMENT_F32, result.shape, result.values, 2, 0};
      status = records->write(records->self, &y, error);
    }
  }
  free(input.values);
  free(result.values);
  return status;
}

static const sr_engine engine_table = {.struct_size = sizeof(sr_engine),
                                       .help = "two-layer ReLU network in C, data parallel",
                                       .declare = declare,
                                       .create = create,
                                       .destroy = destroy,
                                       .load_checkpoint = load_checkpoint,
                                       .forward = forward,
                                       .backward = backward,
                                       .infer = infer};

static const sr_option options[] = {{.struct_size = sizeof(sr_option),
                                     .type = SR_OPTION_INTEGER,
                                     .name = "hidden",
                                     .help = "width of the hidden layer",
                                     .default_integer = 64,
                                     .min_integer = 1,
                                     .max_integer = 1 << 24}};

static void close_plugin(void* self) { free(self); }

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  sr_plugin* const made = (sr_plugin*)calloc(1, sizeof(sr_plugin));
  (void)host;
  if (made == NULL) {
    return fail(error, "out of memory");
  }
  *made =
      (sr_plugin){sizeof(sr_plugin), SR_KIND_ENGINE, made, &engine_table, options, 1, sizeof(sr_option), close_plugin};
  *plugin = made;
  return SR_OK;
}
