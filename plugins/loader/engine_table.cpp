#include "plugins/loader/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "plugins/loader/call.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

/// The element types of arrays, in the order of SR_ELEMENT_F32 and the numbers after it.
constexpr graph::DType array_types[] = {graph::DType::f32, graph::DType::i32, graph::DType::f64, graph::DType::bf16,
                                        graph::DType::f16, graph::DType::i64, graph::DType::u8};

}  // namespace

std::int64_t ArrayView::elements() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

std::size_t ArrayView::bytes() const noexcept {
  return static_cast<std::size_t>(elements()) * graph::element_bytes(dtype());
}

graph::DType ArrayView::dtype() const noexcept { return array_types[element - SR_ELEMENT_F32]; }

std::uint32_t element_of(graph::DType dtype) noexcept {
  const auto* const found = std::ranges::find(array_types, dtype);
  return static_cast<std::uint32_t>(found - std::begin(array_types)) + SR_ELEMENT_F32;
}

ArrayView array_from(const sr_array* given, std::string_view what) {
  const auto raw = read_struct<sr_array>(given, SR_ARRAY_SIZE_1_7, what);
  if (raw.element < SR_ELEMENT_F32 || raw.element > SR_ELEMENT_U8) {
    refuse_with(fmt::format("{} has element type {}, expected one of SR_ELEMENT_..., {} (f32) to {} (u8)", what,
                            raw.element, SR_ELEMENT_F32, SR_ELEMENT_U8));
  }
  if (raw.rank > most_array_dimensions || (raw.rank > 0 && raw.shape == nullptr)) {
    refuse_with(fmt::format("{} has {} dimensions; expected at most {}, each with its extent", what, raw.rank,
                            most_array_dimensions));
  }
  ArrayView array{.element = raw.element, .shape = {raw.shape, raw.shape + raw.rank}, .address = raw.data};
  std::int64_t count = 1;
  for (const std::int64_t extent : array.shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count) || count > (std::int64_t{1} << 40U)) {
      refuse_with(fmt::format("{} has the shape [{}], expected extents from 0, and at most 2^40 elements", what,
                              fmt::join(array.shape, ", ")));
    }
  }
  return array;
}

sr_array raw_array(const ArrayView& array) {
  return {sizeof(sr_array),
          array.element,
          array.shape.data(),
          array.address,
          static_cast<std::uint32_t>(array.shape.size()),
          0};
}

MakeArray maker_from(const sr_array_maker* given, std::string_view what) {
  const auto raw = read_struct<sr_array_maker>(given, SR_ARRAY_MAKER_SIZE_1_7, what);
  if (raw.make == nullptr) {
    refuse_with(fmt::format("{} has no function make", what));
  }
  return [raw, what = std::string(what)](const ArrayView& like) {
    const sr_array shape = raw_array(like);
    void* data = nullptr;
    call_plugin(what, ErrorCode::plugin, [&](sr_error* error) { return raw.make(raw.self, &shape, &data, error); });
    if (data == nullptr && like.elements() > 0) {
      refuse_with(fmt::format("{} made no room", what));
    }
    return data;
  };
}

/// Like array_from(), but also throws Error{plugin} if the array has elements and no memory for them.
static ArrayView filled_array(const sr_array* given) {
  ArrayView array = array_from(given, "the array");
  if (array.address == nullptr && array.elements() > 0) {
    refuse_with(fmt::format("the array [{}] has no data", fmt::join(array.shape, ", ")));
  }
  return array;
}

/// Runs a function of a table. A failure's text goes to the plugin; its code and rank are kept here. After a failure
/// the engine frees the arrays of unfinished messages. So this ends those messages, and every later call fails, too.
template <class Act>
std::int32_t EngineInstance::Table::run_any(void* self, sr_error* error, std::string_view function, Act act) noexcept {
  Table& table = *static_cast<Table*>(self);
  try {
    try {
      if (!table.failure_) {
        act(table);
        return SR_OK;
      }
    } catch (const Error& failure) {
      if (!table.failure_) {
        table.failure_ = Error(failure.code(), fmt::format("{}: {}", function, failure.message()), failure.awaited());
      }
    } catch (const std::exception& failure) {
      if (!table.failure_) {
        table.failure_ = Error(ErrorCode::internal, fmt::format("{}: {}", function, failure.what()));
      }
    }
    table.ranks_.end();
    sdk::detail::write_error(error, table.failure_->message());
  } catch (...) {
    // Out of memory: the failure is returned without a text.
  }
  return SR_INTERNAL;
}

EngineInstance::Table::Table(EngineRanks& ranks) : ranks_(ranks) {
  table_.struct_size = sizeof(table_);
  table_.rank = ranks.rank();
  table_.world_size = ranks.world_size();
  table_.self = this;
  table_.barrier = [](void* self, sr_error* error) {
    return run(self, error, "barrier", [](EngineRanks& to) { to.barrier(); });
  };
  table_.start_send = [](void* self, std::uint32_t to, const sr_array* array, std::uint64_t* message, sr_error* error) {
    return run(self, error, "send",
               [&](EngineRanks& ranks_of) { *message = ranks_of.start_send(to, filled_array(array)); });
  };
  table_.start_receive = [](void* self, std::uint32_t from, const sr_array* array, std::uint64_t* message,
                            sr_error* error) {
    return run(self, error, "receive",
               [&](EngineRanks& ranks_of) { *message = ranks_of.start_receive(from, filled_array(array)); });
  };
  table_.test = [](void* self, std::uint64_t message, sr_error* error) {
    bool complete = false;
    const std::int32_t status = run(self, error, "a message", [&](EngineRanks& to) { complete = to.test(message); });
    return status == SR_OK && !complete ? SR_PENDING : status;
  };
  table_.wait = [](void* self, std::uint64_t message, sr_error* error) {
    return run(self, error, "a message", [&](EngineRanks& to) { to.wait(message); });
  };
  table_.receive = [](void* self, std::uint32_t from, const sr_array_maker* result, sr_error* error) {
    return run(self, error, "receive", [&](EngineRanks& to) { to.receive(from, maker_from(result, "its result")); });
  };
  table_.all_gather = [](void* self, const sr_array* array, std::uint32_t axis, const sr_array_maker* result,
                         sr_error* error) {
    return run(self, error, "all_gather",
               [&](EngineRanks& to) { to.all_gather(filled_array(array), axis, maker_from(result, "its result")); });
  };
  table_.all_reduce = [](void* self, const sr_array* array, std::uint32_t reduction, const sr_array_maker* result,
                         sr_error* error) {
    return run(self, error, "all_reduce", [&](EngineRanks& to) {
      to.all_reduce(filled_array(array), reduction, maker_from(result, "its result"));
    });
  };
  table_.reduce_scatter = [](void* self, const sr_array* array, std::uint32_t axis, std::uint32_t reduction,
                             const sr_array_maker* result, sr_error* error) {
    return run(self, error, "reduce_scatter", [&](EngineRanks& to) {
      to.reduce_scatter(filled_array(array), axis, reduction, maker_from(result, "its result"));
    });
  };
  table_.all_to_all = [](void* self, const sr_array* array, std::uint32_t axis, const sr_array_maker* result,
                         sr_error* error) {
    return run(self, error, "all_to_all",
               [&](EngineRanks& to) { to.all_to_all(filled_array(array), axis, maker_from(result, "its result")); });
  };
  table_.broadcast = [](void* self, const sr_array* array, std::uint32_t root, const sr_array_maker* result,
                        sr_error* error) {
    return run(self, error, "broadcast", [&](EngineRanks& to) {
      to.broadcast(array == nullptr ? std::nullopt : std::optional(filled_array(array)), root,
                   maker_from(result, "its result"));
    });
  };
}

sr_records EngineInstance::Table::records_table(EngineRecords& records) {
  records_ = &records;
  sr_records table{};
  table.struct_size = sizeof(table);
  table.self = this;
  table.next = [](void* self, const sr_array_maker* record, std::uint32_t* found, sr_error* error) {
    return run_any(self, error, "next",
                   [&](Table& to) { *found = to.records_->next(maker_from(record, "its record")) ? 1 : 0; });
  };
  table.write = [](void* self, const sr_array* predictions, sr_error* error) {
    return run_any(self, error, "write", [&](Table& to) { to.records_->write(filled_array(predictions)); });
  };
  return table;
}

}  // namespace shardrun::plugins
