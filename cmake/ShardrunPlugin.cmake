# Builds plugins, in this tree and in any other that has found the package `shardrun`.
#
# A plugin of kind KIND and name NAME is the file shardrun_KIND_NAME.so.

include(GNUInstallDirs)
include("${CMAKE_CURRENT_LIST_DIR}/ShardrunHardening.cmake")

# Plugins run in every step, so they are optimised by default.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# shardrun_plugin_library(KIND_NAME file…)
#
# Adds the target `shardrun_KIND_NAME`, without installing it. It exports only the plugin's two symbols. It is built where
# a program in the build folder finds it.
#
# Its RUNPATH is the installed one from the beginning: one that CMake replaces later ends in an empty entry, which means the
# working directory. The RUNPATH begins with the plugin's own folder. A SHARED target that the plugin links to is found
# there if its project puts it there, in the build folder and installed.
function(shardrun_plugin_library name)
  set(target shardrun_${name})
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE shardrun::plugin)
  if(TARGET shardrun_flags)
    target_link_libraries(${target} PRIVATE shardrun_flags)
  else()
    shardrun_harden(${target} PRIVATE)
  endif()
  set_target_properties(${target} PROPERTIES
    PREFIX ""
    SUFFIX ".so"
    CXX_STANDARD 20
    CXX_STANDARD_REQUIRED ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN"
    INSTALL_RPATH_USE_LINK_PATH ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/shardrun/v1")
endfunction()

# shardrun_add_plugin(KIND_NAME file…)
#
# The same, and installs it where an installed program finds it: shardrun_add_plugin(strategy_rows rows.cpp).
function(shardrun_add_plugin name)
  shardrun_plugin_library(${name} ${ARGN})
  if(TARGET shardrun_plugins)
    add_dependencies(shardrun_plugins shardrun_${name})
  endif()
  install(TARGETS shardrun_${name}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/shardrun/v1" COMPONENT shardrun_plugins)
endfunction()
