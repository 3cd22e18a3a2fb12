# Fails when an object file that is compiled for newer instructions defines a function that the linker could take for
# other files too (core/device/cpu/variant.h says why).
#   NM: the program   OBJECTS: files, separated by |
string(REPLACE "|" ";" objects "${OBJECTS}")
list(FILTER objects EXCLUDE REGEX "[.]gch$")  # precompiled headers, which CMake counts among a target's objects
list(LENGTH objects count)
if(count LESS 2)
  message(FATAL_ERROR "No object files were given: '${OBJECTS}'")
endif()
set(shared "")
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [TWu] [^\n]+" functions "${symbols}")
  foreach(function IN LISTS functions)
    if(NOT function MATCHES "8shardrun6device(3cpu|9reference)2v[34]|8Eigen_v[34]")
      string(APPEND shared "${object}: ${function}\n")
    endif()
  endforeach()
endforeach()
if(shared)
  message(FATAL_ERROR "These functions may be linked into code that runs before an instruction set is chosen:\n${shared}")
endif()
