#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/launch/protocol.h"

namespace shardrun::launch {

/// Where rank 0 listens.
struct Master {
  std::string address;
  std::uint16_t port = 0;
};

/// This process's place among ranks that another launcher started.
struct World {
  std::string launcher;  ///< for messages: "mpirun", "srun", or the variables' names
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  ///< among those of this machine, where the launcher tells both
  std::optional<int> local_size;
  std::optional<Master> master;  ///< MASTER_ADDR and MASTER_PORT
  bool is_by_variables = false;  ///< RANK and WORLD_SIZE: whoever set them knows no other way to meet
};

/// The value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;
[[nodiscard]] const char* own_variable(const char* name);

/// The world that this process belongs to, or nothing where no other launcher started it: one of mpirun
/// (OMPI_COMM_WORLD_RANK), of mpiexec (PMI_RANK and PMI_SIZE), a step of Slurm with several tasks (SLURM_PROCID and
/// SLURM_STEP_NUM_TASKS: a shell or a script within an allocation is no such step), or of RANK, WORLD_SIZE, MASTER_ADDR
/// and MASTER_PORT. A process that launch() started belongs to its launcher alone. Throws Error{usage} where variables
/// make no sense.
[[nodiscard]] std::optional<World> world_of(const Variables& variable = own_variable);

/// Throws Error{usage} where variables say where ranks meet and one of RANK and WORLD_SIZE, and lack the other: this
/// process would be no rank, and each of its kind run the whole job.
void require_whole_world(const Variables& variable = own_variable);

/// The secret of SHARDRUN_TOKEN: 64 hexadecimal digits. Throws Error{usage} where it is something else.
[[nodiscard]] std::optional<Token> token_of(const Variables& variable = own_variable);

/// What the launcher of a world that spans machines cannot know: the address of this machine that others reach it at,
/// from SHARDRUN_ADDRESS; else that of the route to elsewhere, or of the first network interface that is up.
[[nodiscard]] std::string address_of_this_machine(const Variables& variable = own_variable);

/// A numeric address of a host by its name, IPv4 where it has one. Throws Error{usage} where there is none.
[[nodiscard]] std::string resolve(const std::string& host);
/// The same of a host that other machines are to reach, which `variable` names. Throws Error{usage} also where a name
/// (not "localhost") stands for the loopback, as many a machine calls itself, and where it is every address of a host.
[[nodiscard]] std::string resolve_for_others(std::string_view variable, const std::string& host);
/// Whether listening there is listening at all addresses of a host: 0.0.0.0 and ::.
[[nodiscard]] bool is_every_address(const std::string& numeric_address);
[[nodiscard]] bool is_loopback(const std::string& numeric_address);

/// What rank 0 tells the others before they meet, where their launcher does not: as text of a fixed size.
struct Invitation {
  Master master;
  Token token = {};
};
inline constexpr std::size_t invitation_bytes = 256;
[[nodiscard]] std::string encode(const Invitation& invitation);
/// Throws Error{io}.
[[nodiscard]] Invitation decode_invitation(std::string_view bytes);

}  // namespace shardrun::launch
