#pragma once

#include <string_view>

namespace shardrun::serve {

/// page.html, the page on which a person talks with the model.
extern const std::string_view page;

}  // namespace shardrun::serve
