#include "core/metrics/other_formats.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <utility>

#include "core/base/process.h"

namespace shardrun::metrics {
namespace {

// A record is the length of its data in 8 bytes, the masked CRC of these bytes, the data, and the masked CRC of the
// data. The data are a protocol buffer of TensorFlow's message Event. Numbers of fields are those of event.proto,
// summary.proto and tensor.proto.

template <std::unsigned_integral Number>
void append_bytes(std::string& text, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    text += static_cast<char>(static_cast<unsigned char>(number >> (8 * i)));
  }
}

std::uint32_t masked_crc(std::string_view bytes) noexcept { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; }

void append_varint(std::string& text, std::uint64_t number) {
  for (; number >= 128; number >>= 7U) {
    text += static_cast<char>(static_cast<unsigned char>(number | 128U));
  }
  text += static_cast<char>(number);
}

void append_field(std::string& message, unsigned field, std::int64_t value) {
  append_varint(message, field << 3U);
  append_varint(message, static_cast<std::uint64_t>(value));
}

void append_field(std::string& message, unsigned field, double value) {
  append_varint(message, field << 3U | 1U);
  append_bytes(message, std::bit_cast<std::uint64_t>(value));
}

void append_field(std::string& message, unsigned field, float value) {
  append_varint(message, field << 3U | 5U);
  append_bytes(message, std::bit_cast<std::uint32_t>(value));
}

/// Appends a text or a message.
void append_field(std::string& message, unsigned field, std::string_view value) {
  append_varint(message, field << 3U | 2U);
  append_varint(message, value.size());
  message += value;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The beginning of an event: the time, and the step unless it is 0.
std::string event_of(std::int64_t step) {
  std::string event;
  append_field(event, 1, seconds_since_1970());
  if (step != 0) {
    append_field(event, 2, step);
  }
  return event;
}

std::string event_of_version() {
  std::string event = event_of(0);
  append_field(event, 3, std::string_view("brain.Event:2"));
  return event;
}

/// The event at which TensorBoard drops earlier events of this step and of later steps.
std::string event_of_start(std::int64_t step) {
  std::string log;
  append_field(log, 1, std::int64_t{1});  // START
  std::string event = event_of(step);
  append_field(event, 7, log);
  return event;
}

/// The event that holds a text. TensorBoard shows texts as Markdown, and an indented text as it is.
std::string event_of_text(std::int64_t step, std::string_view tag, std::string_view text) {
  std::string shown = "    ";
  for (const char c : text) {
    shown += c;
    shown += c == '\n' ? "    " : "";
  }
  std::string tensor;
  append_field(tensor, 1, std::int64_t{7});  // DT_STRING
  append_field(tensor, 2, std::string_view());
  append_field(tensor, 8, shown);
  std::string plugin;
  append_field(plugin, 1, std::string_view("text"));
  std::string metadata;
  append_field(metadata, 1, plugin);
  append_field(metadata, 4, std::int64_t{2});  // DATA_CLASS_TENSOR
  std::string value;
  append_field(value, 1, tag);
  append_field(value, 9, metadata);
  append_field(value, 8, tensor);
  std::string summary;
  append_field(summary, 1, value);
  std::string event = event_of(step);
  append_field(event, 5, summary);
  return event;
}

/// TensorBoard reads the files of a folder in the order of their names, which begin with the time.
std::string name_of_new_file() {
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  return fmt::format("events.out.tfevents.{:010}.{:06}.{}.{}", now / 1'000'000, now % 1'000'000, host_name(),
                     ::getpid());
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> tags = {{
    {"loss", "loss"},
    {"val_loss", "validation loss"},
    {"grad_norm", "gradient norm"},
    {"lr", "learning rate"},
    {"tokens_per_s", "tokens per second"},
    {"step_s", "step time"},
    {"comm_s", "communication/time"},
    {"comm_exposed_s", "communication/exposed time"},
    {"comm_hidden_s", "communication/hidden time"},
    {"bandwidth", "communication/bytes per second"},
    {"flops_per_s", "flops per second"},
    {"utilisation", "utilisation"},
}};

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) {
      table[i] = (table[i] >> 1U) ^ ((table[i] & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return table;
}();

}  // namespace

std::string_view tag_of(std::string_view field) noexcept {
  const auto* const found = std::ranges::find(tags, field, &std::pair<std::string_view, std::string_view>::first);
  return found == tags.end() ? std::string_view() : found->second;
}

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = (crc >> 8U) ^ crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  }
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t done, std::string_view job)
    : file_(folder / name_of_new_file()) {
  append(event_of_version());
  append(event_of_start(done + 1));
  append(event_of_text(done, "job", job));
}

void EventFile::write(std::span<const JsonField> fields) {
  std::string summary;
  std::int64_t step = 0;
  for (const JsonField& field : fields) {
    if (field.name == "step") {
      step = std::get<std::int64_t>(field.value);
    } else if (const std::string_view tag = tag_of(field.name); !tag.empty()) {
      std::string value;
      append_field(value, 1, tag);
      append_field(value, 2, static_cast<float>(std::get<double>(field.value)));
      append_field(summary, 1, value);
    }
  }
  std::string event = event_of(step);
  append_field(event, 5, summary);
  append(event);
}

void EventFile::append(std::string_view event) {
  record_.clear();
  append_bytes(record_, static_cast<std::uint64_t>(event.size()));
  append_bytes(record_, masked_crc(record_));
  record_ += event;
  append_bytes(record_, masked_crc(event));
  file_.append(record_);
}

}  // namespace shardrun::metrics
