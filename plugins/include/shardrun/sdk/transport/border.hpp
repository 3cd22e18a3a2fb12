#pragma once

/// Converts the values of transports to and from their C form, which points into the value. The C form of a deadline is
/// a time of CLOCK_MONOTONIC. Host and plugin each convert it from and to their own clock (clock.hpp).

#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/transport.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shardrun::sdk::detail {

[[nodiscard]] inline std::optional<Buffer> read(const sr_buffer* from) {
  if (from == nullptr) {
    return std::nullopt;
  }
  const sr_buffer raw = read_one(from);
  return Buffer{raw.data, raw.bytes, raw.registration, raw.kind, raw.device};
}

[[nodiscard]] inline sr_buffer write(const Buffer& buffer) noexcept {
  return {sizeof(sr_buffer), buffer.kind, buffer.data, buffer.bytes, buffer.registration, buffer.device, 0};
}

/// `n`: the size of the op's group.
[[nodiscard]] inline OpSpec read(const sr_op& raw, std::uint32_t n) {
  const auto counts = [&](const std::uint64_t* from, bool wanted) {
    return wanted && from != nullptr ? std::vector<std::uint64_t>(from, from + n) : std::vector<std::uint64_t>();
  };
  const OpcodeTraits* traits = find_opcode(raw.opcode);
  return {.opcode = raw.opcode,
          .dtype = raw.dtype,
          .reduction = raw.reduction,
          .peer = raw.peer,
          .flags = raw.flags,
          .id = raw.id,
          .count = raw.count,
          .send_counts = counts(raw.send_counts, traits != nullptr && traits->has_send_counts),
          .recv_counts = counts(raw.recv_counts, traits != nullptr && traits->has_recv_counts),
          .send = read(raw.send),
          .recv = read(raw.recv),
          .scratch = read(raw.scratch),
          .label = raw.label != nullptr ? raw.label : ""};
}

/// Ops in their C form. It points into `ops`, which must outlive it.
class WrittenOps {
 public:
  explicit WrittenOps(std::span<const OpSpec> ops) : buffers_(ops.size() * 3) {
    sr_buffer* next = buffers_.data();
    const auto written = [&](const std::optional<Buffer>& buffer) -> const sr_buffer* {
      return buffer ? &(*next++ = write(*buffer)) : nullptr;
    };
    const auto counts = [](const std::vector<std::uint64_t>& of) { return of.empty() ? nullptr : of.data(); };
    for (const OpSpec& op : ops) {
      ops_.push_back({.struct_size = sizeof(sr_op),
                      .opcode = op.opcode,
                      .dtype = op.dtype,
                      .reduction = op.reduction,
                      .peer = op.peer,
                      .flags = op.flags,
                      .id = op.id,
                      .count = op.count,
                      .send_counts = counts(op.send_counts),
                      .recv_counts = counts(op.recv_counts),
                      .send = written(op.send),
                      .recv = written(op.recv),
                      .scratch = written(op.scratch),
                      .label = op.label.c_str()});
    }
  }
  WrittenOps(const WrittenOps&) = delete;
  WrittenOps& operator=(const WrittenOps&) = delete;

  [[nodiscard]] const sr_op* data() const noexcept { return ops_.data(); }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ops_.size()); }

 private:
  std::vector<sr_buffer> buffers_;
  std::vector<sr_op> ops_;
};

[[nodiscard]] inline OpInfo read(const sr_op_info& raw) noexcept { return {raw.flags, raw.scratch_bytes}; }

inline void write(const OpInfo& info, sr_op_info& to) noexcept {
  to.flags = info.flags;
  to.scratch_bytes = info.scratch_bytes;
}

[[nodiscard]] inline OpTimes read(const sr_op_times& raw) noexcept {
  const bool is_recent = SR_HAS(&raw, sr_op_times, yielded);
  return {raw.begun, raw.ended, is_recent ? raw.starved : 0, is_recent ? raw.yielded : 0};
}

inline void write(const OpTimes& times, sr_op_times& to) noexcept {
  to.begun = times.begun;
  to.ended = times.ended;
  if (SR_HAS(&to, sr_op_times, yielded)) {
    to.starved = times.starved;
    to.yielded = times.yielded;
  }
}

[[nodiscard]] inline Arrivals read(const sr_arrivals& raw) noexcept { return {raw.bytes, raw.nanoseconds}; }

inline void write(const Arrivals& arrivals, sr_arrivals& to) noexcept {
  to.bytes = arrivals.bytes;
  to.nanoseconds = arrivals.nanoseconds;
}

[[nodiscard]] inline Props read(const sr_transport_props& raw) noexcept {
  return {raw.flags, raw.memory_kinds != 0 ? raw.memory_kinds : Props().memory_kinds, raw.queue_kinds};
}

inline void write(const Props& props, sr_transport_props& to) noexcept {
  to.flags = props.flags;
  to.memory_kinds = props.memory_kinds;
  if (SR_HAS(&to, sr_transport_props, queue_kinds)) {
    to.queue_kinds = props.queue_kinds;
  }
}

[[nodiscard]] inline GroupSpec read(const sr_group& raw) {
  return {.rank = raw.rank,
          .members = {raw.members, raw.members + raw.member_count},
          .name = raw.name != nullptr ? raw.name : "",
          .id = raw.id,
          .deadline = Deadline::from_border(raw.deadline)};
}

[[nodiscard]] inline sr_group write(const GroupSpec& group) noexcept {
  return {.struct_size = sizeof(sr_group),
          .rank = group.rank,
          .members = group.members.data(),
          .member_count = group.size(),
          .reserved = 0,
          .name = group.name.c_str(),
          .id = group.id,
          .deadline = group.deadline.to_border()};
}

[[nodiscard]] inline Setup read(const sr_transport_setup& raw) {
  return {.world_size = raw.world_size,
          .options = OptionValues(raw.options, raw.option_count, raw.option_stride),
          .host = TransportHost(raw.host)};
}

/// `options`: those of `setup`, in their C form.
[[nodiscard]] inline sr_transport_setup write(const Setup& setup, const RawOptions& options) noexcept {
  return {.struct_size = sizeof(sr_transport_setup),
          .world_size = setup.world_size,
          .options = options.data,
          .option_count = options.count,
          .option_stride = options.stride,
          .host = setup.host.raw()};
}

[[nodiscard]] inline Config read(const sr_transport_config& raw) {
  Config config = {.rank = raw.rank,
                   .world_size = raw.world_size,
                   .local_rank = raw.local_rank,
                   .local_world_size = raw.local_world_size,
                   .job = raw.job,
                   .address = raw.address,
                   .options = OptionValues(raw.options, raw.option_count, raw.option_stride),
                   .deadline = Deadline::from_border(raw.deadline),
                   .host = TransportHost(raw.host)};
  if (raw.machines != nullptr) {
    config.machines.assign(raw.machines, raw.machines + raw.world_size);
  }
  if (raw.secret != nullptr) {
    std::copy_n(raw.secret, config.secret.emplace().size(), config.secret->begin());
  }
  return config;
}

/// `options`: those of `config`, in their C form.
[[nodiscard]] inline sr_transport_config write(const Config& config, const RawOptions& options) noexcept {
  return {.struct_size = sizeof(sr_transport_config),
          .rank = config.rank,
          .world_size = config.world_size,
          .local_rank = config.local_rank,
          .local_world_size = config.local_world_size,
          .option_stride = options.stride,
          .host = config.host.raw(),
          .job = config.job.c_str(),
          .address = config.address.c_str(),
          .options = options.data,
          .option_count = options.count,
          .reserved = 0,
          .deadline = config.deadline.to_border(),
          .machines = config.machines.empty() ? nullptr : config.machines.data(),
          .secret = config.secret ? config.secret->data() : nullptr};
}

}  // namespace shardrun::sdk::detail
