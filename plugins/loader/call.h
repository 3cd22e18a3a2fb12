#pragma once

#include <fmt/format.h>
#include <shardrun/sdk/plugin.hpp>

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::plugins {

[[noreturn]] inline void refuse_with(std::string message) { throw Error(ErrorCode::plugin, std::move(message)); }

/// A plugin's text for messages. A text of more than 4 KiB is cut, and its full length is added.
[[nodiscard]] inline std::string excerpt(std::string_view text) {
  constexpr std::size_t most = 4096;
  if (text.size() <= most) {
    return std::string(text);
  }
  std::size_t end = most;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U && end > most - 4) {
    --end;  // back to the beginning of a character
  }
  return fmt::format("{}… ({} bytes)", text.substr(0, end), text.size());
}

[[nodiscard]] inline std::string text_of(const sr_error& error) {
  return printable({error.text, ::strnlen(error.text, sizeof(error.text))});
}

/// The error for a plugin's SR_INVALID.
class Invalid : public Error {
 public:
  Invalid(ErrorCode code, std::string message, std::string reason, std::string setting)
      : Error(code, std::move(message)), reason_(std::move(reason)), setting_(std::move(setting)) {}

  /// The plugin's text alone, without a prefix.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// The setting at fault, such as "model.width" or "data"; empty if the plugin names none.
  [[nodiscard]] const std::string& setting() const noexcept { return setting_; }

 private:
  std::string reason_;
  std::string setting_;
};

/// The host's side of a writer that a plugin gets. It refuses invalid calls and keeps the first refusal, so that the
/// plugin cannot ignore it.
class Recorder {
 public:
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The first refusal, if there was one: an Error{job} as it was thrown, Error{internal} if memory ran out, any other
  /// error as an Error{plugin} that names the call.
  [[nodiscard]] const std::optional<Error>& refusal() const noexcept { return refusal_; }

  /// Runs `act`, which does what the writer's `function` does for `item` (or null). Returns SR_OK, or SR_INVALID with a
  /// text in `error` that begins with the function and the item.
  template <class Act>
  std::int32_t recorded(sr_error* error, std::string_view function, const char* item, Act act) noexcept {
    try {
      try {
        act();
        return SR_OK;
      } catch (const std::exception& failure) {
        const std::string call =
            item != nullptr ? fmt::format("{}('{}')", function, printable(excerpt(item))) : std::string(function);
        const Error named(ErrorCode::plugin, fmt::format("{}: {}", call, failure.what()));
        const auto* const thrown = dynamic_cast<const Error*>(&failure);
        return refuse(error, named.message(), thrown != nullptr && thrown->code() == ErrorCode::job ? *thrown : named);
      }
    } catch (...) {
      return refuse(error, "out of memory", Error(ErrorCode::internal, "out of memory"));
    }
  }

 private:
  std::int32_t refuse(sr_error* error, std::string_view text, const Error& kept) {
    sdk::detail::write_error(error, text);
    if (!refusal_) {
      refusal_ = kept;
    }
    return SR_INVALID;
  }

  std::optional<Error> refusal_;
};

/// Runs a function of a writer whose `self` is a `Kind` of recorder.
template <class Kind, class Act>
std::int32_t record_in(void* self, sr_error* error, std::string_view function, const char* item, Act act) noexcept {
  auto& recorder = *static_cast<Kind*>(self);
  return recorder.recorded(error, function, item, [&] { act(recorder); });
}

/// Calls a plugin's function: `call` takes an sr_error* and returns a status. A failure throws Error{"PREFIX: the
/// plugin's text"} with the code `plugin`; SR_INVALID throws Invalid with the code `invalid`. If an exception leaves
/// the plugin, which the rules forbid, this throws Error{plugin}, as far as it can be caught.
template <class Call>
void call_plugin(std::string_view prefix, ErrorCode invalid, Call call) {
  sr_error error{};
  error.struct_size = sizeof(error);
  std::int32_t status = SR_OK;
  try {
    status = call(&error);
  } catch (const std::exception& escaped) {
    throw Error(ErrorCode::plugin,
                fmt::format("{}: it let an exception out, which no plugin may: {}", prefix, printable(escaped.what())));
  } catch (...) {
    throw Error(ErrorCode::plugin, fmt::format("{}: it let an exception out, which no plugin may", prefix));
  }
  if (status != SR_OK) {
    std::string text = text_of(error);
    if (text.empty()) {
      text = fmt::format("status {}, and it gave no reason", status);
    }
    std::string message = fmt::format("{}: {}", prefix, text);
    if (status == SR_INVALID) {
      throw Invalid(invalid, std::move(message), std::move(text),
                    printable({error.setting, ::strnlen(error.setting, sizeof(error.setting))}));
    }
    throw Error(ErrorCode::plugin, std::move(message));
  }
}

}  // namespace shardrun::plugins
