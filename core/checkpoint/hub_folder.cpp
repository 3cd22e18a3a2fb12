#include "core/checkpoint/hub_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/checkpoint/weights.h"
#include "core/data/tokenizer.h"
#include "core/files/gguf.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"

namespace shardrun::checkpoint {
namespace {

using sdk::ConfigValue;
using sdk::TensorName;
using sdk::TensorPart;

constexpr std::size_t most_config_bytes = std::size_t{16} << 20U;
constexpr std::size_t most_depth = 16;
constexpr const char* config_name = "config.json";
constexpr std::int64_t usual_context = 1024;

// config.json ---------------------------------------------------------------------------------------------------------

void flatten(const boost::json::value& value, const std::string& key, std::size_t depth, std::vector<ConfigValue>& to) {
  const auto nested = [&](const std::string& name, const boost::json::value& member) {
    flatten(member, key.empty() ? name : key + "." + name, depth + 1, to);
  };
  if (depth > most_depth) {
    throw Error(ErrorCode::data, fmt::format("{}: more than {} levels", key, most_depth));
  }
  if (const boost::json::object* const object = value.if_object()) {
    for (const auto& [name, member] : *object) {
      nested(std::string(name), member);
    }
  } else if (const boost::json::array* const array = value.if_array()) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      nested(std::to_string(i), (*array)[i]);
    }
  } else if (value.is_null()) {
    to.push_back({SR_CONFIG_NULL, key, "null"});
  } else if (value.is_bool()) {
    to.push_back({SR_CONFIG_BOOLEAN, key, value.get_bool() ? "true" : "false"});
  } else if (value.is_string()) {
    to.push_back({SR_CONFIG_TEXT, key, std::string(value.get_string())});
  } else {
    to.push_back({SR_CONFIG_NUMBER, key,
                  value.is_double() ? fmt::format("{}", value.get_double()) : boost::json::serialize(value)});
  }
}

std::vector<ConfigValue> config_in(const std::filesystem::path& file) {
  const boost::json::value json =
      files::parse_json_strictly(files::read_text_file(file, most_config_bytes), file.native());
  if (!json.is_object()) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is not a JSON object", file.native()));
  }
  std::vector<ConfigValue> values;
  flatten(json, "", 0, values);
  return values;
}

/// The name that PyTorch uses for a type.
const char* name_of(DType type) {
  return type == DType::bf16 ? "bfloat16" : type == DType::f16 ? "float16" : "float32";
}

/// Returns the member that a flattened key such as "a.b.0" names, and makes it if it is missing. A number is an index.
boost::json::value& member_of(boost::json::value& root, std::string_view key) {
  boost::json::value* at = &root;
  while (!key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    const std::string name(key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
    if (name.find_first_not_of("0123456789") == std::string::npos) {
      if (!at->is_array()) {
        at->emplace_array();
      }
      at->get_array().resize(std::max<std::size_t>(at->get_array().size(), std::stoul(name) + 1));
      at = &at->get_array()[std::stoul(name)];
    } else {
      if (!at->is_object()) {
        at->emplace_object();
      }
      at = &at->get_object()[name];
    }
  }
  return *at;
}

workload::Model model_of_architecture(const std::filesystem::path& file, const std::vector<ConfigValue>& config,
                                      const workload::Models& models) {
  const auto found = std::ranges::find(config, "architectures.0", &ConfigValue::key);
  if (found == config.end() || found->type != SR_CONFIG_TEXT) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' does not say which model it describes: it has no `architectures`", file.native()));
  }
  std::vector<std::string> known;
  for (const std::string& name : models.names()) {
    std::optional<workload::Model> model = models.find(name);
    if (!model) {
      continue;
    }
    if (std::ranges::find(model->architectures, found->text) != model->architectures.end()) {
      return *std::move(model);
    }
    known.insert(known.end(), model->architectures.begin(), model->architectures.end());
  }
  throw Error(
      ErrorCode::data,
      fmt::format("'{}': no model here knows the architecture '{}'; known are {}; directories of other models are "
                  "named in [plugins] path, --plugins or SHARDRUN_PLUGIN_PATH",
                  file.native(), shown(found->text),
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

// Tensors under other names -------------------------------------------------------------------------------------------

/// Says that a part of one tensor is filled from a part of another tensor.
struct TakenPart {
  std::size_t from = 0;  ///< index of the other tensor in its source
  TensorPart part = {};
  TensorPart to = {};
  std::size_t rows = 0;  ///< if the other part must be transposed: its number of rows; otherwise 0
};

/// A tensor whose values come from other tensors.
struct Made {
  TensorInfo info;
  std::vector<TakenPart> pieces;
};

std::size_t elements_of(const TensorInfo& info) { return *tensor_bytes(info) / element_bytes(info.dtype); }

bool is_all(const TensorPart& part) { return part.size == 0 && part.first == 0; }

/// The first index of the range if the tensor is a consecutive range of one other tensor; nothing for other tensors.
std::optional<std::int64_t> place_in(const Made& made, const std::vector<TensorInfo>& from) {
  if (made.pieces.size() != 1 || made.pieces[0].rows > 0 || !is_all(made.pieces[0].to)) {
    return std::nullopt;
  }
  const TensorPart& part = made.pieces[0].part;
  if (is_all(part)) {
    return 0;
  }
  if (part.dim != 0) {
    return std::nullopt;
  }
  const TensorInfo& other = from[made.pieces[0].from];
  return part.first * static_cast<std::int64_t>(elements_of(other)) / other.shape[0];
}

/// Calls act(offset in the whole, bytes, offset in the part) for each contiguous run of a part. Offsets are in bytes.
template <class Act>
void for_each_run(const std::vector<std::int64_t>& shape, const TensorPart& part, std::size_t element, Act act) {
  std::size_t outer = 1;
  std::size_t inner = element;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    (!is_all(part) && d < part.dim ? outer : inner) *=
        d == part.dim && !is_all(part) ? 1 : static_cast<std::size_t>(shape[d]);
  }
  const std::size_t size = is_all(part) ? 1 : static_cast<std::size_t>(part.size);
  const std::size_t whole = is_all(part) ? 1 : static_cast<std::size_t>(shape[part.dim]);
  const auto first = static_cast<std::size_t>(part.first);
  for (std::size_t o = 0; o < outer; ++o) {
    act((o * whole + first) * inner, size * inner, o * size * inner);
  }
}

/// The size of dimension `dim` of the part to which a name refers. REQUIRES: the tensor has two dimensions.
std::size_t size_of_part(const TensorName& name, std::uint32_t dim) {
  return static_cast<std::size_t>(!is_all(name.part) && name.part.dim == dim ? name.part.size : name.shape[dim]);
}

std::vector<std::byte> transposed(const std::vector<std::byte>& bytes, std::size_t rows, std::size_t element) {
  const std::size_t columns = rows == 0 ? 0 : bytes.size() / element / rows;
  std::vector<std::byte> turned(bytes.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      std::memcpy(&turned[(c * rows + r) * element], &bytes[(r * columns + c) * element], element);
    }
  }
  return turned;
}

/// Reads tensors whose values come from other tensors. Keeps in memory only the last tensor that it composed from
/// several pieces.
class Maker {
 public:
  Maker(const TensorSource& from, std::vector<Made> tensors) : from_(from), tensors_(std::move(tensors)) {}

  void read(std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    const Made& made = tensors_[tensor];
    if (const std::optional<std::int64_t> place = place_in(made, from_.tensors)) {
      from_.read(made.pieces[0].from, *place + first, to);
      return;
    }
    if (held_ != tensor) {
      held_ = std::nullopt;
      put_together(made);
      held_ = tensor;
    }
    const std::size_t offset = static_cast<std::size_t>(first) * element_bytes(made.info.dtype);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
  }

 private:
  void put_together(const Made& made) {
    const std::size_t element = element_bytes(made.info.dtype);
    bytes_.assign(elements_of(made.info) * element, std::byte{0});
    for (const TakenPart& piece : made.pieces) {
      const TensorInfo& info = from_.tensors[piece.from];
      std::vector<std::byte> read;
      for_each_run(info.shape, piece.part, element, [&](std::size_t at, std::size_t size, std::size_t) {
        read.resize(read.size() + size);
        from_.read(piece.from, static_cast<std::int64_t>(at / element), std::span(read).last(size));
      });
      if (piece.rows > 0) {
        read = transposed(read, piece.rows, element);
      }
      for_each_run(made.info.shape, piece.to, element, [&](std::size_t at, std::size_t size, std::size_t taken) {
        std::copy_n(read.begin() + static_cast<std::ptrdiff_t>(taken), size,
                    bytes_.begin() + static_cast<std::ptrdiff_t>(at));
      });
    }
  }

  TensorSource from_;
  std::vector<Made> tensors_;
  std::optional<std::size_t> held_;
  std::vector<std::byte> bytes_;
};

TensorSource source_made_of(const TensorSource& from, std::vector<Made> tensors, Metadata metadata) {
  TensorSource source;
  source.path = from.path;
  source.files = from.files;
  source.metadata = std::move(metadata);
  for (const Made& made : tensors) {
    source.tensors.push_back(made.info);
  }
  source.read = [maker = std::make_shared<Maker>(from, std::move(tensors))](std::size_t tensor, std::int64_t first,
                                                                            std::span<std::byte> to) {
    maker->read(tensor, first, to);
  };
  return source;
}

/// Whether `text` matches `pattern`, in which * stands for any characters.
bool matches(std::string_view text, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    return text == pattern;
  }
  if (text.substr(0, star) != pattern.substr(0, star)) {
    return false;
  }
  for (std::size_t at = star; at <= text.size(); ++at) {
    if (matches(text.substr(at), pattern.substr(star + 1))) {
      return true;
    }
  }
  return false;
}

std::string without_first_word(const std::string& name) {
  const std::size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

/// The names that the folder uses. If it has none of the usual names, it contains a model without its head, whose names
/// lack the first word (such as "transformer.").
std::vector<TensorName> names_in(const TensorSource& files, std::vector<TensorName> names) {
  std::set<std::string_view> there;
  for (const TensorInfo& tensor : files.tensors) {
    there.insert(tensor.name);
  }
  const auto is_there = [&](const TensorName& name) { return !name.state.empty() && there.contains(name.name); };
  if (std::ranges::none_of(names, is_there)) {
    std::ranges::for_each(
        names, [](TensorName& name) { name.name = name.state.empty() ? name.name : without_first_word(name.name); });
  }
  return names;
}

[[noreturn]] void refuse_tensors(const TensorSource& files, const std::vector<std::string>& faults) {
  constexpr std::size_t most = 8;
  std::vector<std::string> shown(faults.begin(),
                                 faults.begin() + static_cast<std::ptrdiff_t>(std::min(most, faults.size())));
  if (faults.size() > most) {
    shown.push_back(fmt::format("and {} more", faults.size() - most));
  }
  throw Error(ErrorCode::data, fmt::format("'{}' does not have the tensors of the model that it describes:\n  {}",
                                           files.path.native(), fmt::join(shown, "\n  ")));
}

/// Throws Error{data} unless the tensors fill each element of each parameter exactly once.
void require_all(const graph::Graph& graph, const std::vector<Made>& states) {
  for (const graph::State& state : graph.states) {
    const auto found = std::ranges::find(states, state.name, [](const Made& made) { return made.info.name; });
    if (state.kind != graph::StateKind::parameter) {
      continue;
    }
    const std::size_t all = elements_of({state.name, DType::f32, state.type.shape});
    const bool is_whole = found != states.end() && found->pieces.size() == 1;
    std::vector<bool> is_named(is_whole ? 0 : all, false);
    std::size_t named = 0;
    for (const TakenPart& part : found == states.end() ? std::vector<TakenPart>() : found->pieces) {
      for_each_run(found->info.shape, part.to, 1, [&](std::size_t at, std::size_t size, std::size_t) {
        for (std::size_t i = at; !is_whole && i < at + size; ++i) {
          if (is_named[i]) {
            throw Error(ErrorCode::data,
                        fmt::format("the model gives two names to elements of its parameter {}", state.name));
          }
          is_named[i] = true;
        }
        named += size;
      });
    }
    if (named != all) {
      throw Error(ErrorCode::data, fmt::format("the model gives names to {} of the {} elements of its parameter {}",
                                               named, all, state.name));
    }
  }
}

/// Finds how each state is filled from the tensors of a folder. Throws Error{data} with a list of the tensors that are
/// missing, unknown or of another shape, or if the tensors do not fill every parameter.
std::vector<Made> states_made_of(const TensorSource& files, const graph::Graph& graph,
                                 const std::vector<TensorName>& names) {
  std::map<std::string_view, std::size_t> there;
  for (std::size_t i = 0; i < files.tensors.size(); ++i) {
    there[files.tensors[i].name] = i;
  }
  std::map<std::string_view, Made> states;
  std::set<std::string_view> used;
  std::vector<std::string> faults;
  for (const TensorName& name : names) {
    if (name.state.empty()) {
      continue;
    }
    const auto found = there.find(name.name);
    if (found == there.end()) {
      faults.push_back(fmt::format("{} [{}] is missing", name.name, fmt::join(name.shape, ", ")));
      continue;
    }
    used.insert(found->first);
    const TensorInfo& info = files.tensors[found->second];
    if (info.shape != name.shape || !is_real(info.dtype)) {
      faults.push_back(fmt::format("{} is {} [{}], expected real numbers [{}]", name.name, to_string(info.dtype),
                                   shown(fmt::format("{}", fmt::join(info.shape, ", "))), fmt::join(name.shape, ", ")));
      continue;
    }
    Made& made = states[name.state];
    const graph::State& state = graph.states[graph.find_state(name.state)];
    if (!made.pieces.empty() && made.info.dtype != info.dtype) {
      faults.push_back(fmt::format("{} is {}, and another part of {} is {}", name.name, to_string(info.dtype),
                                   name.state, to_string(made.info.dtype)));
    }
    made.info = {name.state, info.dtype, state.type.shape};
    made.pieces.push_back({found->second, name.part, name.state_part, name.transposed ? size_of_part(name, 0) : 0});
  }
  for (const TensorInfo& tensor : files.tensors) {
    const bool is_left_out = std::ranges::any_of(
        names, [&](const TensorName& name) { return name.state.empty() && matches(tensor.name, name.name); });
    if (!used.contains(tensor.name) && !is_left_out) {
      faults.push_back(fmt::format("{} [{}] is not one of the model", shown(tensor.name),
                                   shown(fmt::format("{}", fmt::join(tensor.shape, ", ")))));
    }
  }
  if (!faults.empty()) {
    refuse_tensors(files, faults);
  }
  std::vector<Made> made;
  for (auto& [name, state] : states) {
    made.push_back(std::move(state));
  }
  require_all(graph, made);
  return made;
}

graph::Graph declared(const workload::Model& model, const workload::ModelSettings& settings) {
  graph::Graph graph;
  model.declare(graph, settings);
  return graph;
}

TensorSource states_in(const TensorSource& files, const workload::Model& model, const workload::ModelSettings& settings,
                       const graph::Graph& graph) {
  const std::vector<TensorName> names = names_in(files, model.tensor_names(graph, settings));
  return source_made_of(files, states_made_of(files, graph, names), describe_model(model_section(model, settings), ""));
}

/// Reduces the option `context` to `usual_context` if it is larger, because some models allow 131,072 tokens, and a
/// batch of such contexts takes much memory. Returns a note for the user; "" if nothing changed.
std::string bound_context(OptionValues& options) {
  if (!options.has("context") || options.integer("context") <= usual_context) {
    return "";
  }
  const std::int64_t known = options.integer("context");
  options.set("context", usual_context);
  return fmt::format(
      "[model] context = {} of the {} tokens that the model knows; --set model.context=N sets another",
      usual_context, known);
}

}  // namespace

bool is_hub_model(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(path / config_name, none) || files::is_gguf(path);
}

HubFolder::HubFolder(const std::filesystem::path& path, const workload::Models& models) {
  if (files::is_gguf(path)) {
    gguf_.emplace(path);
    config_ = gguf_->config();
    read(path, models);
  } else {
    const std::filesystem::path file = path / config_name;
    files_.emplace(path);
    config_ = config_in(file);
    read(file, models);
    source_.files.push_back(file);
  }
  source_.path = path;
  if (gguf_ ? gguf_->has_tokenizer() : std::filesystem::exists(path / "tokenizer.json")) {
    try {
      source_.metadata = describe_model(section_, data::Tokenizer::of_file(path).to_json());
    } catch (const Error& error) {
      note_ += fmt::format("{}the tokenizer cannot be used: {}", note_.empty() ? "" : "\n", error.message());
    }
  }
}

void HubFolder::read(const std::filesystem::path& file, const workload::Models& models) {
  const workload::Model model = model_of_architecture(file, config_, models);
  workload::ModelSettings settings;
  graph::Graph graph;
  try {
    settings.options = model.read_config(config_);
    unbound_.options = settings.options;
    note_ = bound_context(settings.options);
    settings.data.vocab = settings.options.has("vocab") ? settings.options.integer("vocab") : 0;
    graph = declared(model, settings);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("'{}': {}", file.native(), error.message()));
  }
  model_ = model;
  section_ = model_section(model, settings);
  source_ = states_in(tensors(), model, settings, graph);
}

namespace {

/// A different value of the same type.
std::string another_value(const ConfigValue& value) {
  if (value.type == SR_CONFIG_BOOLEAN) {
    return value.text == "true" ? "false" : "true";
  }
  if (value.type != SR_CONFIG_NUMBER) {
    return value.text + "_";
  }
  const double number = std::strtod(value.text.c_str(), nullptr);  // unlike std::stod, takes 1e-310
  const bool is_whole = value.text.find_first_not_of("-0123456789") == std::string::npos;
  const double other = number == 0 ? 1 : std::abs(number) < 1e15 ? number * 2 : number / 1024;
  return is_whole ? std::to_string(static_cast<std::int64_t>(other)) : fmt::format("{}", other);
}

}  // namespace

std::vector<UnderstoodKey> HubFolder::understood_keys() const {
  const auto lines_of = [](const OptionValues& options) {
    std::set<std::string> lines;
    std::istringstream text(to_string(options));
    for (std::string line; std::getline(text, line);) {
      lines.insert(line);
    }
    return lines;
  };
  const std::set<std::string> all = lines_of(model_.read_config(config_));
  // The options that change if the model reads `other` instead of the folder's config; nothing if the model refuses it.
  const auto changes_from = [&](const std::vector<ConfigValue>& other) -> std::optional<std::string> {
    try {
      std::vector<std::string> lost;
      std::ranges::set_difference(all, lines_of(model_.read_config(other)), std::back_inserter(lost));
      return lost.empty() ? "" : fmt::format("sets {}", fmt::join(lost, ", "));
    } catch (const Error&) {
      return std::nullopt;
    }
  };
  std::vector<UnderstoodKey> keys;
  for (std::size_t i = 0; i < config_.size(); ++i) {
    UnderstoodKey& understood = keys.emplace_back(UnderstoodKey{config_[i].key, config_[i].text, ""});
    if (understood.key.starts_with("architectures.")) {
      understood.meaning = fmt::format("model {}", model_.name);
      continue;
    }
    std::vector<ConfigValue> without = config_;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<ConfigValue> changed = config_;
    changed[i].text = another_value(config_[i]);
    const std::optional<std::string> missing = changes_from(without);
    const std::optional<std::string> other = changes_from(changed);
    understood.meaning = missing && !missing->empty() ? *missing
                         : other && !other->empty()   ? *other
                         : !missing                   ? "needed"
                         : !other                     ? "the only value that is supported"
                                                      : "changes nothing";
  }
  return keys;
}

TensorSource states_of_hub(const TensorSource& files, const workload::Model& model,
                           const workload::ModelSettings& settings) {
  return states_in(files, model, settings, declared(model, settings));
}

TensorSource hub_tensors(const TensorSource& weights, const workload::Model& model,
                         const workload::ModelSettings& settings) {
  if (model.architectures.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("the model '{}' does not say what Hugging Face's libraries call its tensors", model.name));
  }
  const graph::Graph graph = declared(model, settings);
  std::map<std::string, Made> tensors;
  for (const TensorName& name : model.tensor_names(graph, settings)) {
    if (name.state.empty()) {
      continue;
    }
    const std::size_t state = weights.index_of(name.state);
    Made& made = tensors[name.name];
    made.info = {name.name, weights.tensors[state].dtype, name.shape};
    // If transposed, the columns of the state's part are the rows of the folder's part.
    made.pieces.push_back({state, name.state_part, name.part, name.transposed ? size_of_part(name, 1) : 0});
  }
  std::vector<Made> all;
  for (auto& [name, made] : tensors) {
    all.push_back(std::move(made));
  }
  return source_made_of(weights, std::move(all), {{"format", "pt"}});
}

std::string hub_config(const workload::Model& model, const workload::ModelSettings& settings, DType type) {
  boost::json::value config = boost::json::object();
  for (const ConfigValue& value : model.write_config(settings)) {
    boost::json::value& member = member_of(config, value.key);
    if (value.type == SR_CONFIG_TEXT) {
      member = value.text;
    } else {
      member = files::parse_json_strictly(value.text, fmt::format("model '{}': {}", model.name, value.key));
    }
  }
  config.get_object()["dtype"] = name_of(type);
  return boost::json::serialize(config) + "\n";
}

std::string HubFolder::config(DType type) const {
  if (gguf_) {
    return hub_config(model_, unbound_, type);
  }
  const std::filesystem::path file = source_.path / config_name;
  boost::json::value config = files::parse_json_strictly(files::read_text_file(file, most_config_bytes), file.native());
  if (!config.is_object()) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is not a JSON object", file.native()));
  }
  boost::json::object& values = config.get_object();
  values[values.contains("torch_dtype") ? "torch_dtype" : "dtype"] = name_of(type);
  return boost::json::serialize(config) + "\n";
}

}  // namespace shardrun::checkpoint
