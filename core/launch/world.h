#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/protocol.h"

namespace shardrun::launch {

/// Where rank 0 listens.
struct Master {
  std::string address;  ///< on other ranks it can be several, separated by commas, which are tried in turn
  std::uint16_t port = 0;
};

/// This process's rank among ranks that another launcher started.
struct World {
  std::string launcher;  ///< for messages: "mpirun", "srun", or the variables' names
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  ///< on this machine, if the launcher tells local rank and size
  std::optional<int> local_size;
  std::optional<Master> master;  ///< MASTER_ADDR and MASTER_PORT
  bool is_by_variables = false;  ///< known from RANK and WORLD_SIZE: ranks can meet only at MASTER_ADDR:MASTER_PORT
};

/// The value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;
[[nodiscard]] const char* own_variable(const char* name);

/// The world to which this process belongs, or nothing if no other launcher started it. One of:
///  - mpirun (OMPI_COMM_WORLD_RANK);
///  - mpiexec (PMI_RANK and PMI_SIZE);
///  - a step of Slurm with several tasks (SLURM_PROCID and SLURM_STEP_NUM_TASKS). A step with one task does not count,
///    even if Slurm sets PMI_RANK and PMI_SIZE for it; a shell or a script in an allocation is such a step;
///  - RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
/// The last four can be set in addition to another launcher's variables. Either both describe the same ranks, or a
/// second launcher has set the four: it was started in each process of the first, and its ranks count.
/// A process that launch() started belongs to launch() only. Throws Error{usage} if variables are invalid.
[[nodiscard]] std::optional<World> world_of(const Variables& variable = own_variable);

/// Throws Error{usage} if MASTER_ADDR and MASTER_PORT are set with only one of RANK and WORLD_SIZE (a WORLD_SIZE of 1
/// may stand alone). Without this check, each such process would run the whole job.
void require_whole_world(const Variables& variable = own_variable);

/// The token in SHARDRUN_TOKEN, 64 hexadecimal digits; nothing if it is not set. Throws Error{usage} if it is invalid.
[[nodiscard]] std::optional<Token> token_of(const Variables& variable = own_variable);

/// The address at which other machines reach this one, which another launcher does not provide. It is taken from
/// SHARDRUN_ADDRESS; otherwise it is the address of the default route, or of the first network interface that is up.
/// Throws Error{usage} if there is none.
[[nodiscard]] std::string address_of_this_machine(const Variables& variable = own_variable);

/// The numeric addresses of a host, at least one, IPv4 first. Throws Error{usage} if it has none.
[[nodiscard]] std::vector<std::string> resolve(const std::string& host);
/// Like resolve(), for a host that other machines must reach. `variable`: the variable that names the host, for
/// messages. If the host is a name other than "localhost", loopback addresses are left out, because many machines map
/// their own name to one. Throws Error{usage} if no address is left, and for 0.0.0.0 and ::.
[[nodiscard]] std::vector<std::string> resolve_for_others(std::string_view variable, const std::string& host);
/// The first address of resolve_for_others() that this machine has. Throws Error{usage} if it has none.
[[nodiscard]] std::string own_of(std::string_view variable, const std::string& host);
[[nodiscard]] bool is_own_address(const std::string& numeric_address);
/// Throws Error{usage} if processes of this machine cannot reach each other at 127.0.0.1.
void require_loopback();
/// Whether the address stands for every address of a host: 0.0.0.0 or ::.
[[nodiscard]] bool is_every_address(const std::string& numeric_address);
[[nodiscard]] bool is_loopback(const std::string& numeric_address);

/// What rank 0 tells the other ranks before they connect, if their launcher does not. It is encoded as text of
/// a fixed size.
struct Invitation {
  Master master;
  Token token = {};
};
inline constexpr std::size_t invitation_bytes = 256;
[[nodiscard]] std::string encode(const Invitation& invitation);
/// Throws Error{io} if the bytes are no invitation.
[[nodiscard]] Invitation decode_invitation(std::string_view bytes);

/// A secret that all processes of this user on this machine share, for ranks without SHARDRUN_TOKEN. It is stored in
/// TMPDIR/shardrun-UID/token (/tmp if TMPDIR is not an absolute path). The first process that asks for it creates it.
/// Throws Error{usage} if another user owns the folder or the file or may access it, Error{io} if it can be neither
/// read nor created.
[[nodiscard]] Token token_of_this_user(const Variables& variable = own_variable);

}  // namespace shardrun::launch
