#include "plugins/loader/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/graph_recorder.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

sr_engine engine_table_of(const Plugin& plugin) {
  return read_struct<sr_engine>(plugin.table().functions, SR_ENGINE_SIZE_1_7,
                                fmt::format("the function table of {}", plugin.path().string()));
}

std::string engine_name(const Plugin& plugin) { return fmt::format("engine '{}'", plugin.manifest().name); }

/// The request in its C form. It points into `values`.
struct RawEngineJob {
  RawEngineJob(const EngineRequest& request, const OptionValues& values) : options(raw_options(values)) {
    job = {sizeof(sr_engine_job),   request.task,     request.rank,
           request.world_size,      options.data(),   static_cast<std::uint32_t>(options.size()),
           sizeof(sr_option_value), request.features, request.outputs};
  }

  std::vector<sr_option_value> options;
  sr_engine_job job{};
};

/// Named arrays in their C form. They point into `arrays`.
struct RawArrays {
  explicit RawArrays(const std::vector<NamedArray>& given) {
    arrays.reserve(given.size());
    for (const NamedArray& each : given) {
      arrays.push_back(raw_array(each.array));
      named.push_back({sizeof(sr_named_array), 0, each.name.c_str(), &arrays.back()});
    }
  }

  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(named.size()); }

  std::vector<sr_array> arrays;
  std::vector<sr_named_array> named;
};

EngineParameter parameter_from(const sr_engine_parameter* given) {
  const auto raw = read_struct<sr_engine_parameter>(given, SR_ENGINE_PARAMETER_SIZE_1_7, "the parameter");
  if (raw.whole == nullptr || raw.rank < 1 || raw.rank > 7) {
    refuse_with(fmt::format("it has {} dimensions, expected 1 to 7 and a shape", raw.rank));
  }
  if (raw.decay > 1 || raw.normal > 1 || !std::isfinite(raw.initial)) {
    refuse_with("decay and normal are 0 or 1, and initial is finite");
  }
  EngineParameter parameter{.name = name_from(raw.name, "the name"),
                            .whole = {raw.whole, raw.whole + raw.rank},
                            .origin = std::vector<std::int64_t>(raw.rank, 0),
                            .shape = {},
                            .decay = raw.decay == 1,
                            .is_normal = raw.normal == 1,
                            .initial = raw.initial};
  parameter.shape = parameter.whole;
  if (raw.origin != nullptr) {
    parameter.origin.assign(raw.origin, raw.origin + raw.rank);
  }
  if (raw.shape != nullptr) {
    parameter.shape.assign(raw.shape, raw.shape + raw.rank);
  }
  double elements = 1;
  for (std::size_t d = 0; d < raw.rank; ++d) {
    elements *= static_cast<double>(parameter.whole[d]);
    if (parameter.whole[d] < 1 || elements > 0x1p40 || parameter.origin[d] < 0 || parameter.shape[d] < 0 ||
        parameter.shape[d] > parameter.whole[d] || parameter.origin[d] > parameter.whole[d] - parameter.shape[d]) {
      refuse_with(fmt::format("the part [{}] at [{}] does not lie in [{}]", fmt::join(parameter.shape, ", "),
                              fmt::join(parameter.origin, ", "), fmt::join(parameter.whole, ", ")));
    }
  }
  return parameter;
}

/// Like array_from(), but at most 6 dimensions, none of size 0; -1 stands for any size.
ArrayView sample_from(const sr_array* given) {
  sr_array raw = read_struct<sr_array>(given, SR_ARRAY_SIZE_1_7, "the sample");
  if (raw.rank >= most_array_dimensions) {
    refuse_with(fmt::format("it has {} dimensions, and a sample has at most {}", raw.rank, most_array_dimensions - 1));
  }
  std::vector<std::int64_t> shape(raw.shape, raw.shape + (raw.shape != nullptr ? raw.rank : 0));
  std::vector<std::int64_t> known = shape;
  std::ranges::replace(known, std::int64_t{-1}, std::int64_t{1});
  raw.shape = raw.shape != nullptr ? known.data() : nullptr;
  ArrayView sample = array_from(&raw, "the sample");
  if (std::ranges::find(known, 0) != known.end()) {
    refuse_with(fmt::format("a sample [{}] has no values", fmt::join(shape, ", ")));
  }
  return {.element = sample.element, .shape = std::move(shape)};
}

/// The host's side of sr_parameter_writer.
class ParameterRecorder final : public Recorder {
 public:
  ParameterRecorder() {
    writer_.struct_size = sizeof(writer_);
    writer_.self = this;
    writer_.add_parameter = [](void* self, const sr_engine_parameter* parameter, sr_error* error) {
      return record_in<ParameterRecorder>(self, error, "add_parameter",
                                          parameter != nullptr ? parameter->name : nullptr,
                                          [&](ParameterRecorder& to) { to.add(parameter_from(parameter)); });
    };
    writer_.set_sample = [](void* self, const sr_array* sample, sr_error* error) {
      return record_in<ParameterRecorder>(self, error, "set_sample", nullptr,
                                          [&](ParameterRecorder& to) { to.set_sample(sample_from(sample)); });
    };
  }

  [[nodiscard]] const sr_parameter_writer& writer() const noexcept { return writer_; }
  [[nodiscard]] EngineDeclaration take() { return std::move(declared_); }

 private:
  void set_sample(ArrayView sample) {
    if (declared_.sample) {
      refuse_with("the sample is said twice");
    }
    declared_.sample = std::move(sample);
  }

  void add(EngineParameter parameter) {
    std::vector<EngineParameter>& all = declared_.parameters;
    if (std::ranges::find(all, parameter.name, &EngineParameter::name) != all.end()) {
      refuse_with("there is a parameter of that name already");
    }
    all.push_back(std::move(parameter));
  }

  sr_parameter_writer writer_{};
  EngineDeclaration declared_;
};

}  // namespace

Engine::Engine(Plugin plugin) : plugin_(std::move(plugin)) {
  const sr_engine table = engine_table_of(plugin_);
  const bool trains = table.forward != nullptr;
  const bool predicts = table.infer != nullptr;
  if (table.declare == nullptr || table.create == nullptr || table.destroy == nullptr ||
      (table.backward != nullptr) != trains || (table.load_checkpoint != nullptr) != predicts ||
      (trains && !predicts) || (!predicts && table.step == nullptr)) {
    refuse_with(
        fmt::format("the function table of {} lacks one of declare, create, destroy, load_checkpoint, forward, "
                    "backward and infer (forward and backward may be left out together; all of the last four, if it "
                    "has step)",
                    plugin_.path().string()));
  }
  flags_ = table.flags;
}

Engine Engine::open(const Directories& directories, std::string_view name, LogSink log) {
  return Engine(Plugin::open(directories, PluginKind::engine, name, std::move(log)));
}

bool Engine::takes_whole_batch() const noexcept { return (flags_ & SR_ENGINE_WHOLE_BATCH) != 0; }
bool Engine::has_messages() const noexcept { return (flags_ & SR_ENGINE_MESSAGES) != 0; }
bool Engine::predicts() const { return engine_table_of(plugin_).infer != nullptr; }
bool Engine::trains() const { return engine_table_of(plugin_).forward != nullptr; }
bool Engine::iterates() const { return engine_table_of(plugin_).step != nullptr; }

EngineDeclaration Engine::declare(const EngineRequest& request) const {
  const OptionValues options = checked_with_defaults(plugin_.options(), request.options);
  const RawEngineJob raw(request, options);
  ParameterRecorder recorder;
  try {
    const CallGuard guard(label_of(plugin_), "declare", call_limit());
    call_plugin(engine_name(plugin_), ErrorCode::job, [&](sr_error* error) {
      return engine_table_of(plugin_).declare(plugin_.table().self, &raw.job, &recorder.writer(), error);
    });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  if (recorder.refusal()) {
    refuse_with(fmt::format("{} ({}) declares what cannot be: {}", engine_name(plugin_), plugin_.path().string(),
                            recorder.refusal()->message()));
  }
  return recorder.take();
}

std::unique_ptr<EngineInstance> Engine::create(const EngineRequest& request, const std::vector<NamedArray>& parameters,
                                               EngineRanks& ranks) const {
  const OptionValues options = checked_with_defaults(plugin_.options(), request.options);
  const RawEngineJob raw(request, options);
  const RawArrays arrays(parameters);
  std::unique_ptr<EngineInstance> made(new EngineInstance(plugin_, ranks));
  made->call("create", [&](const sr_engine& table, sr_error* error) {
    return table.create(plugin_.table().self, &raw.job, arrays.named.data(), arrays.count(), sizeof(sr_named_array),
                        &made->ranks_->table(), &made->engine_, error);
  });
  return made;
}

EngineInstance::EngineInstance(Plugin plugin, EngineRanks& ranks)
    : plugin_(std::move(plugin)), ranks_(std::make_unique<Table>(ranks)) {}

EngineInstance::~EngineInstance() {
  if (engine_ != nullptr) {
    const CallGuard guard(label_of(plugin_), "destroy");
    engine_table_of(plugin_).destroy(plugin_.table().self, engine_);
  }
}

/// Calls the engine. If a function of the ranks or the records failed meanwhile, throws an Error with that one's code.
template <class Call>
void EngineInstance::call(std::string_view function, Call call) {
  const auto fail_with_cause = [&] {
    if (const std::optional<Error>& cause = ranks_->failure()) {
      throw Error(cause->code(), fmt::format("{}, {}: {}", engine_name(plugin_), function, cause->message()),
                  cause->awaited());
    }
  };
  try {
    const CallGuard guard(label_of(plugin_), function);
    call_plugin(fmt::format("{}, {}", engine_name(plugin_), function), ErrorCode::job,
                [&](sr_error* error) { return call(engine_table_of(plugin_), error); });
  } catch (const Error&) {
    fail_with_cause();
    throw;
  }
  fail_with_cause();
}

void EngineInstance::load_checkpoint(const std::vector<NamedArray>& tensors) {
  const RawArrays arrays(tensors);
  call("load_checkpoint", [&](const sr_engine& table, sr_error* error) {
    return table.load_checkpoint(plugin_.table().self, engine_, arrays.named.data(), arrays.count(),
                                 sizeof(sr_named_array), error);
  });
}

void EngineInstance::forward(const ArrayView& input, const MakeArray& make) {
  struct Maker final : Recorder {
    bool is_made = false;
    const MakeArray* make = nullptr;
  } maker;
  maker.make = &make;
  sr_array_maker raw{sizeof(sr_array_maker), 0, &maker, nullptr};
  raw.make = [](void* self, const sr_array* like, void** data, sr_error* error) {
    return record_in<Maker>(self, error, "its predictions", nullptr, [&](Maker& to) {
      const ArrayView view = array_from(like, "the array");
      if (to.is_made || view.element != SR_ELEMENT_F32) {
        refuse_with(to.is_made ? "they are made twice"
                               : fmt::format("they are {}, expected f32", graph::to_string(view.dtype())));
      }
      to.is_made = true;
      *data = (*to.make)(view);
    });
  };
  const sr_array given = raw_array(input);
  call("forward", [&](const sr_engine& table, sr_error* error) {
    const std::int32_t status = table.forward(plugin_.table().self, engine_, &given, &raw, error);
    if (status == SR_OK && !maker.is_made && !maker.refusal()) {
      sdk::detail::write_error(error, "it returned no predictions");
      return SR_INTERNAL;
    }
    return status;
  });
  if (maker.refusal()) {
    throw Error(maker.refusal()->code(),
                fmt::format("{}, forward: {}", engine_name(plugin_), maker.refusal()->message()));
  }
}

void EngineInstance::backward(const ArrayView& gradient, const std::vector<NamedArray>& gradients) {
  const RawArrays arrays(gradients);
  const sr_array given = raw_array(gradient);
  call("backward", [&](const sr_engine& table, sr_error* error) {
    return table.backward(plugin_.table().self, engine_, &given, arrays.named.data(), arrays.count(),
                          sizeof(sr_named_array), error);
  });
}

void EngineInstance::infer(EngineRecords& records) {
  const sr_records raw = ranks_->records_table(records);
  call("inference_loop", [&](const sr_engine& table, sr_error* error) {
    return table.infer(plugin_.table().self, engine_, &raw, error);
  });
}

void EngineInstance::start() {
  call("start", [&](const sr_engine& table, sr_error* error) {
    return table.start != nullptr ? table.start(plugin_.table().self, engine_, error) : SR_OK;
  });
}

void EngineInstance::step(std::int64_t step) {
  call("step",
       [&](const sr_engine& table, sr_error* error) { return table.step(plugin_.table().self, engine_, step, error); });
}

}  // namespace shardrun::plugins
