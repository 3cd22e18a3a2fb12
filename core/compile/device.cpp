#include "core/compile/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/compile/plugins.h"
#include "core/device/choice.h"
#include "core/device/cores.h"
#include "core/device/library.h"

namespace shardrun::compile {
namespace {

/// The transports that the job uses and that do not move host memory. Those that cannot be loaded are refused later.
std::vector<std::string> transports_of_devices(const job::Job& job) {
  std::set<std::string> names;
  if (job.ranks != 1) {
    std::ranges::transform(job.axis_transports, std::inserter(names, names.end()), &job::AxisTransport::transport);
    const bool has_own_for_all = !job.mesh.empty() && std::ranges::all_of(job.mesh, [&](const job::MeshAxis& axis) {
      return axis.size == 1 ||
             std::ranges::find(job.axis_transports, axis.name, &job::AxisTransport::axis) != job.axis_transports.end();
    });
    if (!has_own_for_all) {
      names.insert(job.transport);
    }
  }
  std::erase_if(names, [&](const std::string& name) {
    try {
      return load_transport(job, name).props().moves_host_memory;
    } catch (const Error&) {
      return true;
    }
  });
  return {names.begin(), names.end()};
}

/// Those beside the program that move host memory between ranks that shardrun starts, and leave it to no other.
std::vector<std::string> transports_of_hosts(const job::Job& job) {
  const plugins::Directories directories = directories_of(job.plugins.path);
  std::vector<std::string> names = plugins::plugin_names(directories, plugins::PluginKind::transport);
  std::erase_if(names, [&](const std::string& name) {
    try {
      const plugins::Transport transport = load_transport(directories, name, {}, 2);
      return !transport.props().moves_host_memory || transport.props().own_launcher_only ||
             std::ranges::any_of(transport.options(), &OptionSpec::names_transport);
    } catch (const Error&) {
      return true;
    }
  });
  return names;
}

}  // namespace

const device::Device& find_device(const job::Job& job) {
  try {
    const device::DeviceChoice choice = device::parse_device(job.device);
    const device::Device& device = device::Device::find(choice.name);
    device::require_units(device, choice);
    return device;
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                with_transports(job, fmt::format("{}: [job] device: {}", job.where("job", "device"), error.message())));
  }
}

std::string with_transports(const job::Job& job, std::string message) {
  if (!message.ends_with(device::choose_cpu)) {
    return message;
  }
  if (const std::vector<std::string> names = transports_of_devices(job); !names.empty()) {
    const std::vector<std::string> others = transports_of_hosts(job);
    message += fmt::format(" and, in place of {}, a transport for host memory{}{}", fmt::join(names, " and "),
                           others.empty() ? "" : ", such as ", fmt::join(others, " or "));
  }
  return message;
}

std::int64_t ranks_of_machine(const job::Job& job) {
  const device::Device& device = find_device(job);
  if (!device.has_units()) {
    return device::usable_cores();
  }
  if (const std::size_t named = device::parse_device(job.device).units.size(); named > 0) {
    return static_cast<std::int64_t>(named);
  }
  try {
    return static_cast<std::int64_t>(device.units().size());
  } catch (const Error& error) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks: there is one for each unit of device {}, and these "
                                            "cannot be counted: {}. Write a number, or name the units ({}:0,1)",
                                            job.where("job", "ranks"), device.name(),
                                            with_transports(job, error.message()), device.name()));
  }
}

}  // namespace shardrun::compile
