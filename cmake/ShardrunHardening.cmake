# Hardening options, which make mistakes in native code harder to exploit. For this tree, and for plugins built with its
# package.

option(SHARDRUN_HARDEN "Build with stack protectors, fortified libc calls, control-flow protection and full RELRO" ON)

include(CheckCompilerFlag)
include(CheckCXXSourceCompiles)

# A level of fortified calls that the user's flags or the distribution's compiler set is left as it is.
set(CMAKE_REQUIRED_FLAGS -O2)
check_cxx_source_compiles("#ifndef _FORTIFY_SOURCE
#error not asked for
#endif
int main() { return 0; }" SHARDRUN_IS_FORTIFIED)
unset(CMAKE_REQUIRED_FLAGS)

# shardrun_harden(TARGET SCOPE)
#
# Adds the options that the compilers in use support. Fortified calls need optimisation, so targets with the property
# SHARDRUN_UNOPTIMISED, and Debug builds, get none. Sanitizers check the same calls themselves.
function(shardrun_harden target scope)
  if(NOT SHARDRUN_HARDEN)
    return()
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  list(FILTER languages INCLUDE REGEX "^(C|CXX)$")
  foreach(language IN LISTS languages)
    foreach(flag IN ITEMS -fstack-protector-strong -fcf-protection)
      string(MAKE_C_IDENTIFIER "SHARDRUN_${language}${flag}" has_flag)
      check_compiler_flag(${language} "${flag}" ${has_flag})
      if(${has_flag})
        target_compile_options(${target} ${scope} "$<$<COMPILE_LANGUAGE:${language}>:${flag}>")
      endif()
    endforeach()
  endforeach()
  if(NOT SHARDRUN_SANITIZE AND NOT SHARDRUN_IS_FORTIFIED)
    set(optimised "$<NOT:$<OR:$<CONFIG:Debug>,$<BOOL:$<TARGET_PROPERTY:SHARDRUN_UNOPTIMISED>>>>")
    target_compile_options(${target} ${scope}
      "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,${optimised}>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>")
  endif()
  target_link_options(${target} ${scope} LINKER:-z,relro LINKER:-z,now)
endfunction()
