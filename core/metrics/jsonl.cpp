#include "core/metrics/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "core/base/error.h"
#include "core/metrics/json_text.h"

namespace shardrun::metrics {

JsonlWriter::JsonlWriter(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) {
    throw files::system_error("open", path_, errno);
  }
}

void JsonlWriter::write(std::span<const JsonField> fields) {
  line_.clear();
  for (const JsonField& field : fields) {
    line_ += line_.empty() ? '{' : ',';
    append_json(line_, field.name);
    line_ += ':';
    std::visit([&](auto value) { append_json(line_, value); }, field.value);
  }
  line_ += "}\n";

  struct stat before = {};
  const bool regular = ::fstat(file_.get(), &before) == 0 && S_ISREG(before.st_mode);
  try {
    files::write_all(file_, std::as_bytes(std::span(line_)), path_);
  } catch (const Error&) {
    if (regular && ::ftruncate(file_.get(), before.st_size) != 0) {
      // The exception in flight already says what is wrong with this file.
    }
    throw;
  }
}

void JsonlWriter::write(const StepRecord& record) {
  std::array<JsonField, 10> fields;
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
  write(std::span(fields).first(count));
}

}  // namespace shardrun::metrics
