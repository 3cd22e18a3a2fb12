#include "plugins/loader/transport_raw.h"

#include <fmt/format.h>

#include "plugins/loader/call.h"

namespace shardrun::plugins {
namespace {

ErrorCode code_of(std::int32_t status) noexcept {
  switch (status) {
    case SR_TIMEOUT: return ErrorCode::timeout;
    case SR_ABORTED: return ErrorCode::aborted;
    case SR_PEER_LOST: return ErrorCode::peer_lost;
    default: return ErrorCode::transport;
  }
}

sr_buffer raw_buffer(const sdk::Buffer& buffer) noexcept {
  sr_buffer raw{};
  raw.struct_size = sizeof(raw);
  raw.kind = buffer.kind;
  raw.data = buffer.data;
  raw.bytes = buffer.bytes;
  raw.registration = buffer.registration;
  raw.device = buffer.device;
  return raw;
}

std::optional<sdk::Buffer> buffer_of(const std::optional<HostBuffer>& buffer) noexcept {
  if (!buffer) {
    return std::nullopt;
  }
  return sdk::Buffer{.data = buffer->data,
                     .bytes = buffer->bytes,
                     .registration = buffer->registration,
                     .kind = buffer->kind,
                     .device = buffer->device};
}

/// "WHAT: TEXT". Omits what `what` ends with where the text begins with it, such as an op that the transport names
/// itself.
std::string joined(std::string_view what, std::string_view text) {
  constexpr std::string_view between = ", ";
  for (std::size_t at = what.find(between); at != std::string_view::npos; at = what.find(between, at + 1)) {
    const std::string_view end = what.substr(at + between.size());
    const std::string_view rest = text.starts_with(end) ? text.substr(end.size()) : std::string_view();
    if (rest.starts_with(':') || rest.starts_with(' ')) {
      return fmt::format("{}{}", what, rest);
    }
  }
  return fmt::format("{}: {}", what, text);
}

}  // namespace

sdk::TransportError failure_of(std::int32_t status, const sr_error& error) {
  const std::string text = text_of(error);
  const auto awaited = sdk::TransportError(status, error).awaited();
  return {status, text.empty() ? fmt::format("status {}, and no reason given", status) : text, awaited};
}

void fail(std::string_view what, const sdk::TransportError& failure) {
  throw Error(code_of(failure.status()), joined(what, failure.what()), failure.awaited());
}

sdk::OpSpec spec_of(const OpRequest& request) {
  return {.opcode = request.opcode,
          .dtype = request.dtype,
          .reduction = request.reduction,
          .peer = request.peer,
          .flags = request.flags | (request.in_order ? SR_OP_FLAG_IN_ORDER : 0),
          .id = request.id,
          .count = request.count,
          .send_counts = request.send_counts,
          .recv_counts = request.recv_counts,
          .send = buffer_of(request.send),
          .recv = buffer_of(request.recv),
          .scratch = buffer_of(request.scratch),
          .label = request.label};
}

RawOps::RawOps(const std::vector<sdk::OpSpec>& specs) : buffers_(specs.size() * 3), ops_(specs.size()) {
  sr_buffer* next = buffers_.data();
  const auto take = [&](const std::optional<sdk::Buffer>& buffer, const sr_buffer*& to) {
    if (buffer) {
      *next = raw_buffer(*buffer);
      to = next++;
    }
  };
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const sdk::OpSpec& spec = specs[i];
    sr_op& op = ops_[i];
    op.struct_size = sizeof(op);
    op.opcode = spec.opcode;
    op.dtype = spec.dtype;
    op.reduction = spec.reduction;
    op.peer = spec.peer;
    op.flags = spec.flags;
    op.id = spec.id;
    op.count = spec.count;
    op.send_counts = spec.send_counts.empty() ? nullptr : spec.send_counts.data();
    op.recv_counts = spec.recv_counts.empty() ? nullptr : spec.recv_counts.data();
    take(spec.send, op.send);
    take(spec.recv, op.recv);
    take(spec.scratch, op.scratch);
    op.label = spec.label.c_str();
  }
}

}  // namespace shardrun::plugins
