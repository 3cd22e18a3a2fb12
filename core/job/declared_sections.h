#pragma once

#include <string_view>

#include "core/job/reading.h"
#include "core/job/schema.h"

namespace shardrun::job {

// Sections whose keys a model, an engine, a strategy or a transport declares. Each function throws Error{job} for
// errors in the job, Error{plugin} for options that are declared wrongly, and what the providers throw.

/// The prefix of a section with the options of a transport; the transport's name follows.
inline constexpr std::string_view transport_prefix = "transport.";

/// Reads the key `name` first, because the model that it names declares the other keys.
void read_model(Reading& reading, const Section& section);
void read_engine(Reading& reading);
void read_strategy(Reading& reading);
/// Reads the transports of [job] and [transport], and the transports that these open.
void read_transports(Reading& reading);

}  // namespace shardrun::job
