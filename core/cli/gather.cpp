#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/base/text.h"
#include "core/checkpoint/history.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"

namespace shardrun::cli {
namespace {

std::int64_t elements_of(const checkpoint::TensorInfo& info) {
  return static_cast<std::int64_t>(*checkpoint::tensor_bytes(info) / checkpoint::element_bytes(info.dtype));
}

/// Prints a line for each row, and an empty line between matrices. float32 is printed with all its digits.
void print_numbers(const checkpoint::OpenTensor& tensor) {
  const std::vector<std::int64_t>& shape = tensor.info.shape;
  const std::int64_t columns = shape.empty() ? 1 : shape.back();
  const std::int64_t rows = shape.size() < 2 ? 1 : shape[shape.size() - 2];
  const std::int64_t elements = elements_of(tensor.info);
  const bool is_real = checkpoint::is_real(tensor.info.dtype);
  std::vector<double> values;
  std::string text;
  for (std::int64_t first = 0; first < elements; first += static_cast<std::int64_t>(values.size())) {
    stop_point();
    values.resize(static_cast<std::size_t>(std::min(checkpoint::elements_at_once, elements - first)));
    checkpoint::read_numbers(tensor, first, values);
    text.clear();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t next = first + static_cast<std::int64_t>(i) + 1;
      const auto to = std::back_inserter(text);
      if (is_real) {
        fmt::format_to(to, "{}", static_cast<float>(values[i]));
      } else {
        fmt::format_to(to, "{}", static_cast<std::int64_t>(values[i]));
      }
      text += next % columns != 0 ? " " : "\n";
      text += next % (columns * rows) == 0 && next != elements ? "\n" : "";
    }
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      throw Error(ErrorCode::io, "standard output cannot be written: what was printed is incomplete");
    }
  }
}

/// Writes a .npy file. bfloat16, which NumPy lacks, becomes float32.
void write_array(const checkpoint::OpenTensor& tensor, const std::filesystem::path& to) {
  const std::int64_t elements = elements_of(tensor.info);
  checkpoint::TensorInfo written = tensor.info;
  const bool is_widened = written.dtype == checkpoint::DType::bf16;
  written.dtype = is_widened ? checkpoint::DType::f32 : written.dtype;
  const std::size_t width = checkpoint::element_bytes(written.dtype);
  checkpoint::TensorFileWriter file(to, checkpoint::lay_out_npy(written));
  std::vector<std::byte> bytes;
  std::vector<double> values;
  for (std::int64_t first = 0; first < elements; first += checkpoint::elements_at_once) {
    stop_point();
    const std::int64_t count = std::min(checkpoint::elements_at_once, elements - first);
    bytes.resize(static_cast<std::size_t>(count) * width);
    if (is_widened) {
      values.resize(static_cast<std::size_t>(count));
      checkpoint::read_numbers(tensor, first, values);
      std::vector<float> floats(values.begin(), values.end());
      std::ranges::copy(std::as_bytes(std::span(floats)), bytes.begin());
    } else {
      tensor.read(first, bytes);
    }
    file.write(written.name, static_cast<std::uint64_t>(first) * width, bytes);
  }
  file.commit();
}

int gather(std::span<const std::string> words) {
  const Parsed parsed =
      parse("gather", words,
            {{.name = "step", .value = "N", .help = "the step to take it of (default: the last that was saved)"},
             {.name = "to", .value = "FILE.npy", .help = "write a NumPy file instead of printing the numbers"},
             needing("to", replace_option())},
            2, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const std::filesystem::path to = parsed.get("to").value_or("");
  if (parsed.has("to") && to.extension() != ".npy") {
    throw Error(ErrorCode::usage, fmt::format("--to: the file is a NumPy array: expected a name that ends in .npy, "
                                              "found '{}'",
                                              to.native()));
  }
  const std::int64_t wanted = parsed.integer("step", -1, 0, std::numeric_limits<std::int64_t>::max());
  catch_stop_signals();
  const checkpoint::History history(parsed.positional[0], parsed.positional[1]);
  const std::int64_t step = parsed.has("step") ? wanted : history.steps().back();
  const checkpoint::OpenTensor tensor = history.open(step);
  const std::string what =
      fmt::format("{} {} [{}]{}", tensor.info.name, to_string(tensor.info.dtype), fmt::join(tensor.info.shape, ", "),
                  step == checkpoint::History::unknown_step ? "" : fmt::format(" of step {}", step));
  if (!parsed.has("to")) {
    fmt::print("# {}\n", printable(what));
    print_numbers(tensor);
    return 0;
  }
  files::require_not_read(to, tensor.files);
  require_new(parsed, to);
  write_array(tensor, to);
  fmt::print("{}, {}, in {}\n", printable(what), human_bytes(*checkpoint::tensor_bytes(tensor.info)),
             printable(files::human_path(to)));
  return 0;
}

const RegisterCommand gather_command({.name = "gather",
                                      .arguments = "RUN STATE",
                                      .help = "print or write the whole of a state that a run has saved in parts",
                                      .run = gather});

}  // namespace
}  // namespace shardrun::cli
