#pragma once

#include <cstdlib>
#include <string>

#include "tests/support/catch.h"

namespace shardrun::test {

/// The launcher of the MPI with which the transport was built. The variables are for Open MPI; other MPIs ignore them.
/// They allow more ranks than cores, bind ranks to no core, and allow root.
inline const std::string mpirun =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
    "OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
    "PRTE_MCA_hwloc_default_binding_policy=none '" SHARDRUN_MPIEXEC "'";

[[nodiscard]] inline bool has_mpirun() {
  if (std::system("command -v '" SHARDRUN_MPIEXEC "' > /dev/null 2>&1") == 0) {
    return true;
  }
  WARN("skipped: there is no mpirun, or the transport mpi was not built");
  return false;
}

}  // namespace shardrun::test
