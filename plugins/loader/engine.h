#pragma once

#include <shardrun/engine.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/graph/tensor_type.h"
#include "core/options/options.h"
#include "plugins/loader/plugin.h"

struct sr_engine;

namespace shardrun::plugins {

/// shardrun/engine.h as plain values. That header states the meaning of every field; numbers are those of the header.

/// A contiguous array in memory that someone else owns.
struct ArrayView {
  std::uint32_t element = 1;  ///< SR_ELEMENT_...
  std::vector<std::int64_t> shape;
  void* address = nullptr;  ///< of the first element

  [[nodiscard]] std::int64_t elements() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] graph::DType dtype() const noexcept;
};

/// The SR_ELEMENT_... of an element type.
[[nodiscard]] std::uint32_t element_of(graph::DType dtype) noexcept;

struct NamedArray {
  std::string name;
  ArrayView array;
};

/// Makes memory for a result with the element type and shape of `like`, which has no address. Returns its address.
using MakeArray = std::function<void*(const ArrayView& like)>;

/// A rank's collectives for an engine: sr_ranks. Functions that can fail throw Error.
class EngineRanks {
 public:
  EngineRanks() = default;
  EngineRanks(const EngineRanks&) = delete;
  EngineRanks& operator=(const EngineRanks&) = delete;
  virtual ~EngineRanks() = default;

  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;
  virtual void barrier() = 0;
  [[nodiscard]] virtual std::uint64_t start_send(std::uint32_t to, const ArrayView& array) = 0;
  [[nodiscard]] virtual std::uint64_t start_receive(std::uint32_t from, const ArrayView& array) = 0;
  [[nodiscard]] virtual bool test(std::uint64_t message) = 0;
  virtual void wait(std::uint64_t message) = 0;
  virtual void receive(std::uint32_t from, const MakeArray& make) = 0;
  virtual void all_gather(const ArrayView& array, std::uint32_t axis, const MakeArray& make) = 0;
  virtual void all_reduce(const ArrayView& array, std::uint32_t reduction, const MakeArray& make) = 0;
  virtual void reduce_scatter(const ArrayView& array, std::uint32_t axis, std::uint32_t reduction,
                              const MakeArray& make) = 0;
  virtual void all_to_all(const ArrayView& array, std::uint32_t axis, const MakeArray& make) = 0;
  /// `array`: nothing if the engine passed null, as other ranks than the root may.
  virtual void broadcast(const std::optional<ArrayView>& array, std::uint32_t root, const MakeArray& make) = 0;
  /// Ends unfinished messages, with an error for the other ranks. Afterwards nothing uses the engine's memory, and no
  /// other function may be called.
  virtual void end() noexcept = 0;
};

/// The records of an engine that infers: sr_records. Each function throws Error.
class EngineRecords {
 public:
  EngineRecords() = default;
  EngineRecords(const EngineRecords&) = delete;
  EngineRecords& operator=(const EngineRecords&) = delete;
  virtual ~EngineRecords() = default;

  /// Gets the next record. Returns false at the end.
  virtual bool next(const MakeArray& make) = 0;
  virtual void write(const ArrayView& predictions) = 0;
};

struct EngineRequest {
  OptionValues options;    ///< a declared option that is missing here gets its default
  std::uint32_t task = 1;  ///< SR_ENGINE_...
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::int64_t features = 0;
  std::int64_t outputs = 0;
};

/// A parameter, or a part of one, that a rank holds.
struct EngineParameter {
  std::string name;
  std::vector<std::int64_t> whole;
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> shape;  ///< shape of the part; the part can have no elements
  bool decay = false;
  bool is_normal = false;
  double initial = 0;
};

/// What an engine declares for a rank of a job.
struct EngineDeclaration {
  std::vector<EngineParameter> parameters;
  std::optional<ArrayView> sample;  ///< a sample's type and shape, with -1 for any size; nothing: not declared
};

class EngineInstance;

/// An opened engine plugin. Copyable. One thread at a time uses it.
class Engine {
 public:
  /// Finds, loads and opens the engine `name`. Throws Error{plugin}.
  [[nodiscard]] static Engine open(const Directories& directories, std::string_view name, LogSink log = {});

  [[nodiscard]] const Manifest& manifest() const noexcept { return plugin_.manifest(); }
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept { return plugin_.options(); }
  /// Whether every rank's forward gets the whole batch.
  [[nodiscard]] bool takes_whole_batch() const noexcept;
  /// Whether the engine sends and receives messages.
  [[nodiscard]] bool has_messages() const noexcept;
  /// Whether the engine predicts records. If not, it only iterates.
  [[nodiscard]] bool predicts() const;
  /// Whether the engine can be trained.
  [[nodiscard]] bool trains() const;
  /// Whether the engine has steps, for [job] task = iterate.
  [[nodiscard]] bool iterates() const;

  /// The parameters of the requested rank, and the engine's samples. Throws Invalid (call.h) if the job has to change,
  /// Error{plugin} if the engine fails or breaks a rule.
  [[nodiscard]] EngineDeclaration declare(const EngineRequest& request) const;
  /// Makes this rank's engine. `parameters`: as declared, in order; their memory and `ranks` outlive the result. Throws
  /// as `declare` and EngineInstance do.
  [[nodiscard]] std::unique_ptr<EngineInstance> create(const EngineRequest& request,
                                                       const std::vector<NamedArray>& parameters,
                                                       EngineRanks& ranks) const;

 private:
  explicit Engine(Plugin plugin);

  Plugin plugin_;
  std::uint32_t flags_ = 0;
};

/// A rank's engine. Each call throws Invalid if the job has to change, and Error{plugin} if the engine fails. If a
/// function of EngineRanks or EngineRecords failed within the call, the call throws an Error with that failure's code.
class EngineInstance {
 public:
  EngineInstance(const EngineInstance&) = delete;
  EngineInstance& operator=(const EngineInstance&) = delete;
  ~EngineInstance();

  void load_checkpoint(const std::vector<NamedArray>& tensors);
  /// `make` makes the memory for the result. Throws Error{plugin} if the result is not f32.
  void forward(const ArrayView& input, const MakeArray& make);
  void backward(const ArrayView& gradient, const std::vector<NamedArray>& gradients);
  void infer(EngineRecords& records);
  /// Sets the states to the values with which a run begins.
  void start();
  /// Computes the step with this number, counted from 0. REQUIRES: the engine iterates.
  void step(std::int64_t step);

 private:
  friend class Engine;
  class Table;
  EngineInstance(Plugin plugin, EngineRanks& ranks);
  template <class Call>
  void call(std::string_view function, Call call);

  Plugin plugin_;
  std::unique_ptr<Table> ranks_;
  void* engine_ = nullptr;
};

inline constexpr std::uint32_t most_array_dimensions = 7;

/// Checks an array that a plugin gave, and converts it. Throws Error{plugin}.
[[nodiscard]] ArrayView array_from(const sr_array* given, std::string_view what);

/// The C form of an array. It points into `array`.
[[nodiscard]] sr_array raw_array(const ArrayView& array);

/// Converts a plugin's maker of results to a function.
[[nodiscard]] MakeArray maker_from(const sr_array_maker* given, std::string_view what);

/// The host's side of sr_ranks. It keeps the first error, so an engine cannot ignore it.
class EngineInstance::Table {
 public:
  explicit Table(EngineRanks& ranks);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] const sr_ranks& table() const noexcept { return table_; }
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

  /// The table of records, whose errors are kept, too. Valid as long as this object and `records`.
  [[nodiscard]] sr_records records_table(EngineRecords& records);

 private:
  /// Runs a function of a table. `act` takes this object. Returns SR_OK, or SR_INTERNAL after any error.
  template <class Act>
  static std::int32_t run_any(void* self, sr_error* error, std::string_view function, Act act) noexcept;
  /// The same for an `act` that takes the ranks.
  template <class Act>
  static std::int32_t run(void* self, sr_error* error, std::string_view function, Act act) noexcept {
    return run_any(self, error, function, [&](Table& table) { act(table.ranks_); });
  }

  EngineRanks& ranks_;
  sr_ranks table_{};
  std::optional<Error> failure_;
  EngineRecords* records_ = nullptr;
};

}  // namespace shardrun::plugins
