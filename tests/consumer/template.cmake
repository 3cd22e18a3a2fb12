# Installs everything, as the README of plugins/template wants it, and runs the commands of that README word for word. The
# folder that they copy is the installed one.
#
# all: optimised, as plugins are by default; otherwise not, which takes a third of the time.
#
# cmake -D all=… -D build=… -D work=… -D generator=… -D cxx=… -P template.cmake

cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/execute.cmake")

file(REMOVE_RECURSE "${work}")
foreach(component IN ITEMS shardrun_sdk shardrun_plugins shardrun)
  run("${CMAKE_COMMAND}" --install "${build}" --component "${component}" --prefix "${work}/shardrun")
endforeach()

file(READ "${work}/shardrun/share/shardrun/template/README.md" readme)
if(NOT readme MATCHES "\n```sh\n(.*)\n```\n")
  message(FATAL_ERROR "the template's README has no commands")
endif()
file(WRITE "${work}/commands" "${CMAKE_MATCH_1}\n")
set(ENV{HOME} "${work}")
set(ENV{CMAKE_GENERATOR} "${generator}")
set(ENV{CXX} "${cxx}")
if(NOT all)
  set(ENV{CMAKE_BUILD_TYPE} Debug)
endif()
set(ENV{CXXFLAGS} "-Wall -Wextra -Wpedantic -Wconversion -Wno-restrict -Werror")
unset(ENV{SHARDRUN_PLUGIN_PATH})
run("${CMAKE_COMMAND}" -E chdir "${work}" sh -eu commands)

# The last of them lists what they installed.
run(sh -c "'${work}/shardrun/bin/shardrun' plugins | grep -q '^engine mine 1.0 (ABI 1.9) ${work}/shardrun/'")
run(sh -c "'${work}/shardrun/bin/shardrun' plugins | grep -q '^model mine 1.0 (ABI 1.9) ${work}/shardrun/'")
run(sh -c "'${work}/shardrun/bin/shardrun' plugins | grep -q '^strategy mine 1.0 (ABI 1.9) ${work}/shardrun/'")
run(sh -c "'${work}/shardrun/bin/shardrun' plugins | grep -q '^transport mine 1.0 (ABI 1.9) ${work}/shardrun/'")
