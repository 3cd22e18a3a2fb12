#include "core/conformance/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/device/elements.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"

#if defined(SHARDRUN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace shardrun::conformance {
namespace {

#if defined(SHARDRUN_ASAN)
void forbid(const std::byte* begin, std::size_t bytes) { ASAN_POISON_MEMORY_REGION(begin, bytes); }
void allow(const std::byte* begin, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(begin, bytes); }
#else
void forbid(const std::byte*, std::size_t) {}
void allow(const std::byte*, std::size_t) {}
#endif

/// Memory for a tensor between two guards, aligned as in the arena. guards_are_whole() detects writes to the guards;
/// with AddressSanitizer, reads are detected too. Initially each byte of the memory is `content`.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes, unsigned char content = 0xFF)
      : bytes_(bytes), memory_(bytes + 2 * guard_bytes + alignment, guard) {
    void* begin = memory_.data() + guard_bytes;
    std::size_t space = bytes + alignment;
    begin_ = static_cast<std::byte*>(std::align(alignment, bytes, begin, space));
    std::memset(begin_, content, bytes_);
    forbid(memory_.data(), before());
    forbid(begin_ + bytes_, after());
  }
  ~Buffer() { allow(memory_.data(), memory_.size()); }
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = delete;

  [[nodiscard]] std::byte* data() noexcept { return begin_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The buffer and its guards, to be copied to a device. REQUIRES: unguard() was called.
  [[nodiscard]] std::span<std::byte> with_guards() noexcept { return {begin_ - guard_bytes, bytes_ + 2 * guard_bytes}; }

  /// Makes the guards readable. Call once, after the last use of the buffer and before guards_are_whole().
  void unguard() const noexcept { allow(memory_.data(), memory_.size()); }
  [[nodiscard]] bool guards_are_whole() const noexcept {
    const auto is_guard = [](std::byte byte) { return byte == guard; };
    return std::all_of(memory_.data(), memory_.data() + before(), is_guard) &&
           std::all_of(begin_ + bytes_, begin_ + bytes_ + after(), is_guard);
  }

  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t guard_bytes = 128;

 private:
  static constexpr std::byte guard{0xA5};

  [[nodiscard]] std::size_t before() const noexcept { return static_cast<std::size_t>(begin_ - memory_.data()); }
  [[nodiscard]] std::size_t after() const noexcept { return memory_.size() - before() - bytes_; }

  std::size_t bytes_;
  std::byte* begin_ = nullptr;
  std::vector<std::byte> memory_;
};

device::Threads& threads_of(int count) {
  static std::map<int, device::Threads> pools;
  return pools.try_emplace(count, count).first->second;
}

std::size_t bytes_of(const device::Device& device, const Tensor& tensor) {
  return tensor.values.size() * graph::element_bytes(device.stored(tensor.type.dtype));
}

void store(const device::Device& device, const Tensor& tensor, void* data) {
  device::write_elements(device.stored(tensor.type.dtype), tensor.values,
                         {static_cast<std::byte*>(data), bytes_of(device, tensor)});
}

Tensor load(const device::Device& device, const Tensor& like, const void* data) {
  Tensor tensor = like;
  device::read_elements(device.stored(like.type.dtype), {static_cast<const std::byte*>(data), bytes_of(device, like)},
                        tensor.values);
  return tensor;
}

device::TensorView view_of(const device::Device& device, const Tensor& tensor, void* data) {
  device::TensorView view{.data = data, .dtype = device.stored(tensor.type.dtype), .rounded = tensor.type.dtype};
  view.rank = static_cast<std::uint32_t>(tensor.type.shape.size());
  std::copy(tensor.type.shape.begin(), tensor.type.shape.end(), view.shape.begin());
  std::copy(tensor.origin.begin(), tensor.origin.end(), view.origin.begin());
  std::copy(tensor.global.begin(), tensor.global.end(), view.global.begin());
  return view;
}

std::vector<graph::TensorType> types_of(const std::vector<Tensor>& tensors) {
  std::vector<graph::TensorType> types;
  for (const Tensor& tensor : tensors) {
    types.push_back(tensor.type);
  }
  return types;
}

/// The index of each output's buffer. An output has a buffer of its own, unless it shares the buffer of an input.
std::vector<std::size_t> output_buffers(const Execution& execution) {
  std::vector<std::size_t> buffers;
  for (std::size_t o = 0; o < execution.outputs.size(); ++o) {
    buffers.push_back(execution.inputs.size() + o);
  }
  for (const auto& [output, input] : execution.in_place) {
    buffers[output] = input;
  }
  return buffers;
}

void check_operands_kept(const device::Device& device, const Execution& execution,
                         const std::vector<std::size_t>& outputs, std::vector<Buffer>& buffers) {
  for (std::size_t i = 0; i < execution.inputs.size(); ++i) {
    if (std::find(outputs.begin(), outputs.end(), i) != outputs.end()) {
      continue;
    }
    Buffer before(bytes_of(device, execution.inputs[i]));
    store(device, execution.inputs[i], before.data());
    if (std::memcmp(before.data(), buffers[i].data(), before.bytes()) != 0) {
      throw Error(ErrorCode::internal,
                  fmt::format("kernel {} of {} changed its operand {}", execution.op, device.name(), i));
    }
  }
}

}  // namespace

DeviceRoom::DeviceRoom(const device::Device& device, bool separate)
    : device_(device), separate_(separate), queue_(device.open_queue(threads_of(1))) {}

DeviceRoom::~DeviceRoom() { queue_.reset(); }  // the queue is destroyed first, because it uses the memory

/// Device copies of the host buffers of one execution.
class RoomOfBuffers {
 public:
  RoomOfBuffers(DeviceRoom& room, std::vector<Buffer>& buffers) : room_(room), buffers_(buffers) {
    std::size_t end = 0;
    std::vector<std::size_t> offsets;
    for (Buffer& buffer : buffers) {
      offsets.push_back(end);
      end += (buffer.with_guards().size() + Buffer::alignment - 1) / Buffer::alignment * Buffer::alignment;
    }
    if (!room.separate_ && (room.memory_ == nullptr || room.memory_->bytes() < end)) {
      room.memory_.reset();
      room.memory_ = room.device_.allocate(end);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (room.separate_) {
        own_.push_back(room.device_.allocate(std::max<std::size_t>(1, buffers[i].bytes())));
        copies_.push_back({{buffers[i].data(), buffers[i].bytes()}, own_.back()->data()});
      } else {
        copies_.push_back({buffers[i].with_guards(), room.memory_->data() + offsets[i]});
      }
    }
  }
  RoomOfBuffers(const RoomOfBuffers&) = delete;
  RoomOfBuffers& operator=(const RoomOfBuffers&) = delete;
  /// Waits for copies in flight, because they use the host's buffers. This is needed after a failure too.
  ~RoomOfBuffers() {
    try {
      room_.queue_->finish();
    } catch (const Error&) {
      // The error was thrown earlier, or the next use of the device throws it again.
    }
  }

  void write() {
    for (const Copy& copy : copies_) {
      room_.queue_->write(copy.host, copy.device);
    }
  }

  /// The device address of a buffer's first byte behind the guard.
  [[nodiscard]] std::byte* data(std::size_t buffer) const {
    return copies_[buffer].device + (buffers_[buffer].data() - copies_[buffer].host.data());
  }

  void run(const device::PreparedKernel& kernel, const Execution& execution) {
    room_.queue_->run(kernel, execution.accumulate, execution.scalars);
    for (const Copy& copy : copies_) {
      room_.queue_->read(copy.device, copy.host);
    }
    room_.queue_->finish();
  }

 private:
  struct Copy {
    std::span<std::byte> host;
    std::byte* device = nullptr;
  };

  DeviceRoom& room_;
  std::vector<Buffer>& buffers_;
  std::vector<std::shared_ptr<const device::Memory>> own_;
  std::vector<Copy> copies_;
};

std::vector<Tensor> execute(const device::Device& device, const Execution& execution) {
  const device::Kernel& kernel = execution.kernel != nullptr ? *execution.kernel : device.kernel(execution.op);
  const std::vector<std::size_t> output_at = output_buffers(execution);
  std::vector<Buffer> buffers;
  for (const Tensor& tensor : execution.inputs) {
    buffers.emplace_back(bytes_of(device, tensor));
    store(device, tensor, buffers.back().data());
  }
  for (const Tensor& tensor : execution.outputs) {
    buffers.emplace_back(bytes_of(device, tensor), execution.content);
    if (execution.accumulate) {
      store(device, tensor, buffers.back().data());
    }
  }
  const std::vector<graph::TensorType> input_types = types_of(execution.inputs);
  const std::vector<graph::TensorType> output_types = types_of(execution.outputs);
  const graph::OpShape shape{execution.attributes, input_types, output_types};
  const std::size_t scratch = buffers.size();
  buffers.emplace_back(device.scratch_bytes(kernel, shape, execution.threads), execution.content);

  std::optional<RoomOfBuffers> on_device;
  if (execution.room != nullptr) {
    std::ranges::for_each(buffers, &Buffer::unguard);
    on_device.emplace(*execution.room, buffers);
    on_device->write();
  }
  const auto data = [&](std::size_t buffer) { return on_device ? on_device->data(buffer) : buffers[buffer].data(); };
  std::vector<device::TensorView> inputs;
  std::vector<device::TensorView> outputs;
  for (std::size_t i = 0; i < execution.inputs.size(); ++i) {
    inputs.push_back(view_of(device, execution.inputs[i], data(i)));
  }
  for (std::size_t o = 0; o < execution.outputs.size(); ++o) {
    outputs.push_back(view_of(device, execution.outputs[o], data(output_at[o])));
  }
  const std::span<std::byte> scratch_memory = {data(scratch), buffers[scratch].bytes()};
  if (on_device) {
    on_device->run(*device.prepare(kernel, execution.attributes, inputs, outputs, scratch_memory), execution);
  } else {
    const std::shared_ptr<void> prepared = device::prepare_kernel(kernel, shape);
    device::run_kernel(kernel, {.attributes = execution.attributes,
                                .inputs = inputs,
                                .outputs = outputs,
                                .accumulate = execution.accumulate,
                                .scratch = scratch_memory,
                                .scalars = execution.scalars,
                                .threads = threads_of(execution.threads),
                                .prepared = prepared.get()});
    std::ranges::for_each(buffers, &Buffer::unguard);
  }

  if (!std::ranges::all_of(buffers, &Buffer::guards_are_whole)) {
    throw Error(ErrorCode::internal, fmt::format("kernel {} of {} wrote past a buffer", execution.op, device.name()));
  }
  check_operands_kept(device, execution, output_at, buffers);
  std::vector<Tensor> results;
  for (std::size_t o = 0; o < execution.outputs.size(); ++o) {
    results.push_back(load(device, execution.outputs[o], buffers[output_at[o]].data()));
  }
  return results;
}

IdVector<graph::ValueId, Tensor> evaluate(const graph::Function& function, const device::Device& device,
                                          const std::map<graph::ValueId, Tensor>& given,
                                          const device::Scalars& scalars) {
  IdVector<graph::ValueId, Tensor> values(function.values.size());
  for (const auto& [id, tensor] : given) {
    values[id] = tensor;
  }
  for (const graph::Node& node : function.nodes) {
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    for (const graph::ValueId id : node.inputs) {
      inputs.push_back(values[id]);
    }
    for (const graph::ValueId id : node.outputs) {
      outputs.push_back(zeros(function.values[id].type));
    }
    outputs = execute(
        device,
        {.op = node.op->name, .attributes = node.attributes, .inputs = inputs, .outputs = outputs, .scalars = scalars});
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      values[node.outputs[o]] = std::move(outputs[o]);
    }
  }
  return values;
}

}  // namespace shardrun::conformance
