#include "core/launch/world.h"

#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun::launch;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using shardrun::test::error_of;

namespace {

using Environment = std::map<std::string, std::string>;

Variables variables(const Environment& environment) {
  return [&environment](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

std::optional<World> found_in(const Environment& environment) { return world_of(variables(environment)); }

std::string refusal_of(const Environment& environment) {
  return error_of([&] { (void)found_in(environment); });
}

const Environment by_variables = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) {
    environment[name] = value;
  }
  return environment;
}

}  // namespace

TEST_CASE("a process without a place in its environment is in no world", "[launch]") {
  CHECK_FALSE(found_in({}));
  CHECK_FALSE(found_in({{"RANK", "0"}}));
  CHECK_FALSE(found_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  CHECK_FALSE(found_in(with(by_variables, {{"SHARDRUN_LAUNCH_FD", "3"}})));
}

TEST_CASE("mpirun's place is taken from its variables", "[launch]") {
  const std::optional<World> world = found_in({{"OMPI_COMM_WORLD_RANK", "5"},
                                               {"OMPI_COMM_WORLD_SIZE", "8"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                               {"RANK", "7"},
                                               {"WORLD_SIZE", "9"}});
  REQUIRE(world);
  CHECK(world->launcher == "mpirun");
  CHECK(world->rank == 5);
  CHECK(world->size == 8);
  CHECK(world->local_rank == 1);
  CHECK(world->local_size == 4);
  CHECK_FALSE(world->master);
  CHECK_FALSE(world->is_by_variables);
}

TEST_CASE("a step of Slurm is a world, and a shell or a script within an allocation is not", "[launch]") {
  const Environment script = {{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  CHECK_FALSE(found_in(script));
  CHECK_FALSE(found_in(with(script, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}})));
  const std::optional<World> world =
      found_in(with(script, {{"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}));
  REQUIRE(world);
  CHECK(world->launcher == "srun");
  CHECK(world->rank == 2);
  CHECK(world->size == 4);
  CHECK_FALSE(world->local_rank);
}

TEST_CASE("a step of Slurm with one task is not a world, with PMI's variables or without", "[launch]") {
  const Environment task = {
      {"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  const Environment pmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMI_FD", "14"}};
  CHECK_FALSE(found_in(task));
  CHECK_FALSE(found_in(with(task, pmi)));

  // The only rank of an mpiexec is a world, and so is each rank whose mpiexec has one helper, started by srun.
  CHECK(found_in(pmi)->launcher == "mpiexec");
  CHECK(found_in(with(with(task, pmi), {{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}))->launcher == "mpiexec");
  CHECK(found_in(with(task, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}))->size == 4);
}

TEST_CASE("a place by PMI may come with MASTER_ADDR and MASTER_PORT", "[launch]") {
  const std::optional<World> world =
      found_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}});
  REQUIRE(world);
  CHECK(world->launcher == "mpiexec");
  REQUIRE(world->master);
  CHECK(world->master->address == "node1");
  CHECK(world->master->port == 1234);
}

TEST_CASE("mpiexec's local rank is taken if it is set", "[launch]") {
  const Environment hydra = {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}};
  CHECK_FALSE(found_in(hydra)->local_size);
  const std::optional<World> world = found_in(with(hydra, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}}));
  CHECK(world->local_rank == 1);
  CHECK(world->local_size == 4);
}

TEST_CASE("variables of the srun that started mpiexec do not set a rank's place", "[launch]") {
  const std::optional<World> world = found_in({{"PMI_RANK", "3"},
                                               {"PMI_SIZE", "8"},
                                               {"SLURM_JOB_ID", "1"},
                                               {"SLURM_PROCID", "1"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_STEP_NUM_TASKS", "2"},
                                               {"SLURM_NTASKS", "2"}});
  REQUIRE(world);
  CHECK(world->launcher == "mpiexec");
  CHECK(world->rank == 3);
  CHECK(world->size == 8);
}

TEST_CASE("environment variables give a rank its place", "[launch]") {
  const std::optional<World> world = found_in(by_variables);
  REQUIRE(world);
  CHECK(world->is_by_variables);
  CHECK(world->rank == 1);
  CHECK(world->size == 4);
  CHECK(world->master->port == 29500);
  CHECK_FALSE(world->local_size);
  CHECK(found_in(with(by_variables, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}))->local_size == 2);
}

TEST_CASE("of two launchers, the one that sets MASTER_ADDR is the inner one", "[launch]") {
  const auto task = [](int rank, int size) {
    return Environment{
        {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", std::to_string(size)}, {"SLURM_PROCID", std::to_string(rank)}};
  };
  const auto mpi = [](int rank, int size) {
    return Environment{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", std::to_string(size)}};
  };
  const auto inner = [](int rank, int size, int local) {
    Environment environment =
        with(by_variables, {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size)}});
    return local == 0 ? environment
                      : with(environment, {{"LOCAL_RANK", std::to_string(rank % local)},
                                           {"LOCAL_WORLD_SIZE", std::to_string(local)}});
  };
  for (const bool is_slurm : {true, false}) {
    const auto outer = [&](int rank, int size) { return is_slurm ? task(rank, size) : mpi(rank, size); };
    // torchrun on each of two machines: the order of its ranks need not be that of the outer launcher.
    for (int rank = 0; rank < 4; ++rank) {
      const std::optional<World> world = found_in(with(inner(rank, 4, 2), outer(1 - rank / 2, 2)));
      REQUIRE(world);
      CHECK((world->rank == rank && world->size == 4 && world->local_size == 2 && world->is_by_variables));
    }
    CHECK(found_in(with(inner(3, 4, 0), outer(1, 2)))->rank == 3);
    CHECK(found_in(with(inner(1, 2, 2), outer(0, 1)))->size == 2);
    // A script that repeats the launcher's variables.
    const std::optional<World> same = found_in(with(inner(1, 4, 0), outer(1, 4)));
    CHECK_FALSE(same->is_by_variables);
    CHECK(same->master->address == "10.0.0.1");
    // Variables that disagree.
    for (const Environment& left_over :
         {with(inner(0, 1, 0), outer(1, 4)), with(inner(0, 4, 0), outer(1, 4)), with(inner(0, 2, 0), outer(2, 4)),
          with(inner(1, 4, 4), outer(1, 2)), with(inner(0, 4, 0), outer(1, 2)), with(inner(2, 3, 0), outer(1, 2))}) {
      const std::string refusal = refusal_of(left_over);
      CHECK_THAT(refusal,
                 StartsWith(std::string("2: ") + (is_slurm ? "srun" : "mpirun") + " started this process as rank ") &&
                     Contains("and RANK and WORLD_SIZE say rank "));
      CHECK_THAT(refusal, !Contains("--launch here"));
    }
  }
}

TEST_CASE("an invalid variable is named, with the way out", "[launch]") {
  CHECK_THAT(refusal_of(with(by_variables, {{"RANK", "4"}})), Contains("RANK is '4', not a number from 0 to 3"));
  CHECK_THAT(refusal_of(with(by_variables, {{"WORLD_SIZE", "four"}})), Contains("WORLD_SIZE is 'four'"));
  CHECK_THAT(refusal_of(with(by_variables, {{"WORLD_SIZE", "0"}})), Contains("WORLD_SIZE is '0'"));
  CHECK_THAT(refusal_of(with(by_variables, {{"MASTER_PORT", "0"}})), Contains("MASTER_PORT is '0'"));
  CHECK_THAT(refusal_of(with(by_variables, {{"MASTER_PORT", "66000"}})), Contains("MASTER_PORT is '66000'"));
  CHECK_THAT(refusal_of(with(by_variables, {{"MASTER_ADDR", ""}})), Contains("MASTER_ADDR is not set"));
  CHECK_THAT(refusal_of(with(by_variables, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}})),
             Contains("LOCAL_RANK is '2', not a number from 0 to 1"));
  CHECK_THAT(refusal_of({{"OMPI_COMM_WORLD_RANK", "0"}}), Contains("OMPI_COMM_WORLD_SIZE is not set"));
  CHECK_THAT(refusal_of(with(by_variables, {{"RANK", "-1"}})), Contains("--launch here"));
}

TEST_CASE("MASTER_ADDR without a rank or a world size is refused", "[launch]") {
  const auto refusal = [](const Environment& environment) {
    return error_of([&] { require_whole_world(variables(environment)); });
  };
  CHECK_THAT(refusal(with(by_variables, {{"RANK", ""}})),
             Contains("MASTER_ADDR, MASTER_PORT and WORLD_SIZE are set and RANK is not") && Contains("--launch here"));
  CHECK_THAT(refusal(with(by_variables, {{"WORLD_SIZE", ""}})), Contains("RANK are set and WORLD_SIZE is not"));
  const auto is_fine = [&](const Environment& environment) {
    CHECK_NOTHROW(require_whole_world(variables(environment)));
  };
  is_fine(by_variables);
  is_fine(with(by_variables, {{"RANK", ""}, {"WORLD_SIZE", "1"}}));
  is_fine(with(by_variables, {{"RANK", ""}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}}));
  is_fine({{"WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}});
}

TEST_CASE("a token is 64 hexadecimal digits or none", "[launch]") {
  CHECK_FALSE(token_of(variables({})));
  const Environment good = {{"SHARDRUN_TOKEN", "00" + std::string(60, 'f') + "Ab"}};
  const std::optional<Token> token = token_of(variables(good));
  REQUIRE(token);
  CHECK(token->front() == 0);
  CHECK((*token)[1] == 0xff);
  CHECK(token->back() == 0xab);
  for (const std::string& bad :
       {std::string("secret"), std::string(63, 'f'), std::string(65, 'f'), std::string(64, 'g')}) {
    const Environment environment = {{"SHARDRUN_TOKEN", bad}};
    const std::string refusal = error_of([&] { (void)token_of(variables(environment)); });
    CHECK_THAT(refusal, Contains("openssl rand -hex 32"));
    CHECK(refusal.find(bad) == std::string::npos);
  }
}

TEST_CASE("an invitation is read back, and other bytes are refused", "[launch]") {
  Invitation invitation;
  invitation.master.address = "192.168.7.1";
  invitation.master.port = 40001;
  invitation.token = random_token();
  const std::string bytes = encode(invitation);
  CHECK(bytes.size() == invitation_bytes);
  const Invitation read = decode_invitation(bytes);
  CHECK(read.master.address == "192.168.7.1");
  CHECK(read.master.port == 40001);
  CHECK(read.token == invitation.token);
  CHECK_THROWS(decode_invitation(std::string(invitation_bytes, '\0')));
  CHECK_THROWS(decode_invitation("192.168.7.1 40001 abc"));
}

TEST_CASE("addresses are numeric, and one of this machine's can be given", "[launch]") {
  CHECK(is_loopback(resolve("localhost").front()));
  CHECK(resolve("127.0.0.1") == std::vector<std::string>{"127.0.0.1"});
  CHECK(resolve("::1") == std::vector<std::string>{"::1"});
  CHECK(is_own_address("127.0.0.1"));
  CHECK_FALSE(is_own_address("192.0.2.77"));
  CHECK_THAT(error_of([] { (void)own_of("SHARDRUN_ADDRESS", "192.0.2.77"); }),
             StartsWith("2: SHARDRUN_ADDRESS = 192.0.2.77 is no address of this machine, which has "));
  CHECK_FALSE(is_loopback("10.0.0.1"));
  CHECK_FALSE(is_loopback("no address"));
  CHECK(address_of_this_machine(variables({{"SHARDRUN_ADDRESS", "127.0.0.2"}})) == "127.0.0.2");
}

TEST_CASE("a name that resolves only to this machine is refused as an address for others", "[launch]") {
  CHECK(is_loopback(resolve_for_others("MASTER_ADDR", "localhost").front()));
  CHECK(resolve_for_others("MASTER_ADDR", "127.0.1.1") == std::vector<std::string>{"127.0.1.1"});
  CHECK(resolve_for_others("MASTER_ADDR", "10.0.0.1") == std::vector<std::string>{"10.0.0.1"});
  CHECK_THAT(error_of([] { (void)resolve_for_others("MASTER_ADDR", "LOCALHOST"); }),
             Contains("MASTER_ADDR = LOCALHOST resolves to ") && Contains("give the address that others reach"));
  for (const char* everywhere : {"0.0.0.0", "0", "0x0", "::", "::ffff:0.0.0.0"}) {
    CHECK_THAT(error_of([&] { (void)resolve_for_others("MASTER_ADDR", everywhere); }),
               StartsWith("2: ") && Contains("stands for every address of a host"));
  }
}
