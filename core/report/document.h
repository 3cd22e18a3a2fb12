#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace shardrun::report {

/// The page of a report before it is filled: HTML with the placeholders {{TITLE}}, {{CONNECT}} and {{DOCUMENT}}.
extern const std::string_view page_template;

/// Reads the folder of a run, whether the run has ended or not. If files have grown, it reads only their new lines.
class RunReader {
 public:
  /// `name`: the folder as the person named it.
  RunReader(std::filesystem::path folder, std::string name);
  RunReader(RunReader&&) noexcept;
  ~RunReader();

  /// What the folder says now: an element of `runs` in the document that the page draws (docs/report.md). Missing files
  /// are left out. `notes` says what cannot be read. The trace is not read. Throws Error{usage} if the folder is not
  /// that of a run.
  [[nodiscard]] boost::json::object document();

 private:
  void add_lines(boost::json::object& run);

  std::filesystem::path folder_;
  std::string name_;
  struct Read;
  std::unique_ptr<Read> read_;  ///< what was read so far of files that grow
};

/// An entry of `ranks` of a run; the list grows as far as needed.
[[nodiscard]] boost::json::object& rank_of(boost::json::object& run, std::size_t rank);

/// Adds a part that was made separately, the trace or the plan, to a run. Fields of the part replace those of the run,
/// but its notes are appended, and a field of a rank that the run has stays, except `planned`.
void join(boost::json::object& run, const boost::json::object& part);

/// Adds a text for people to `notes` of a run.
void add_note(boost::json::object& run, std::string_view text);

/// Sets `job` of a run, the text of its job file and the settings in it, `task` and `unit`. Throws Error{job}.
void set_job(boost::json::object& run, const std::string& text);

/// The trace of a run, as a part to join(). If it has too many spans, steps, functions and the actions of a schedule
/// are kept before others, and long spans before short ones.
[[nodiscard]] boost::json::object trace_document(const std::filesystem::path& folder);

/// The document as text: JSON in UTF-8 without `<`, so that it can stand in a script element of HTML. `live`: whether
/// the page asks for newer documents.
[[nodiscard]] std::string document_text(boost::json::array runs, std::string_view version, bool live);

/// The whole page. `document`: the result of document_text() with the same `live`.
[[nodiscard]] std::string page_text(std::string_view title, std::string_view document, bool live);

/// Whether a file is a page that page_text() has made.
[[nodiscard]] bool is_page(const std::filesystem::path& file);

}  // namespace shardrun::report
