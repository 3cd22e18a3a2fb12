#include "core/metrics/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/metrics/json_text.h"

namespace shardrun::metrics {
namespace {

/// The last line of a file; empty if the file cannot be read.
std::string last_line(const std::filesystem::path& path) {
  constexpr off_t longest = 4096;
  const files::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return "";
  }
  std::string text(static_cast<std::size_t>(std::min(status.st_size, longest)), '\0');
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), status.st_size - static_cast<off_t>(text.size()));
  if (bytes != static_cast<ssize_t>(text.size()) || text.size() < 2) {
    return "";
  }
  const std::size_t before = text.rfind('\n', text.size() - 2);
  return before == std::string::npos ? text : text.substr(before + 1);
}

/// The line without a field and the field's numeric value.
std::string without(std::string line, std::string_view field) {
  const std::size_t begin = line.find(field);
  if (begin != std::string::npos) {
    line.erase(begin, line.find_first_of(",}", begin + field.size()) - begin);
  }
  return line;
}

}  // namespace

void append_line(std::string& text, std::span<const JsonField> fields) {
  char separator = '{';
  for (const JsonField& field : fields) {
    text += std::exchange(separator, ',');
    append_json(text, field.name);
    text += ':';
    std::visit([&](auto value) { append_json(text, value); }, field.value);
  }
  text += "}\n";
}

void JsonlWriter::write(std::span<const JsonField> fields) {
  line_.clear();
  append_line(line_, fields);
  file_.append(line_);
}

void JsonlWriter::write(const StepRecord& record) {
  std::array<JsonField, training_fields.size()> storage;
  write(fields_of(record, storage));
}

std::span<const JsonField> fields_of(const StepRecord& record, std::array<JsonField, training_fields.size()>& fields) {
  std::size_t count = 0;
  fields[count++] = {"step", record.step};
  fields[count++] = {"loss", record.loss};
  if (record.val_loss) {
    fields[count++] = {"val_loss", *record.val_loss};
  }
  fields[count++] = {"grad_norm", record.grad_norm};
  fields[count++] = {"lr", record.lr};
  fields[count++] = {"tokens_per_s", record.tokens_per_s};
  fields[count++] = {"step_s", record.step_s};
  fields[count++] = {"comm_s", record.comm_s};
  fields[count++] = {"comm_exposed_s", record.comm_exposed_s};
  fields[count++] = {"comm_hidden_s", record.comm_hidden_s};
  fields[count++] = {"bandwidth", record.bandwidth};
  if (record.flops_per_s) {
    fields[count++] = {"flops_per_s", *record.flops_per_s};
  }
  if (record.utilisation) {
    fields[count++] = {"utilisation", *record.utilisation};
  }
  return std::span(fields).first(count);
}

void JsonlWriter::add_validation(std::int64_t step, double val_loss) {
  constexpr std::string_view field = ",\"val_loss\":";
  const std::string last = last_line(file_.path());
  std::string begin = "{";
  append_json(begin, std::string_view("step"));
  begin += ':';
  append_json(begin, step);
  if (!last.ends_with("}\n") || (!last.starts_with(begin + ',') && !last.starts_with(begin + '}'))) {
    return write(std::array<JsonField, 2>{{{"step", step}, {"val_loss", val_loss}}});
  }
  line_ = without(last, field);
  line_.erase(line_.rfind('}'));
  line_ += field;
  append_json(line_, val_loss);
  line_ += "}\n";
  // Opened again, because a descriptor that appends cannot write elsewhere.
  const files::FileDescriptor file(::open(file_.path().c_str(), O_WRONLY | O_CLOEXEC));
  struct stat before = {};
  if (!file.is_open() || ::fstat(file.get(), &before) != 0) {
    throw files::system_error("open", file_.path(), errno);
  }
  const off_t at = before.st_size - static_cast<off_t>(last.size());
  if (::lseek(file.get(), at, SEEK_SET) != at) {
    throw files::system_error("write", file_.path(), errno);
  }
  try {
    files::write_all(file, std::as_bytes(std::span(line_)), file_.path());
  } catch (const Error&) {
    // The step's line keeps its old content.
    static_cast<void>(::pwrite(file.get(), last.data(), last.size(), at) < 0 ||
                      ::ftruncate(file.get(), before.st_size) != 0);
    throw;
  }
  if (::ftruncate(file.get(), at + static_cast<off_t>(line_.size())) != 0) {
    throw files::system_error("write", file_.path(), errno);
  }
}

}  // namespace shardrun::metrics
