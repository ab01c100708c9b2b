# find_package(Sluice) gives the target Sluice::sluice.
get_filename_component(_sluice_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Sluice::sluice)
  add_library(Sluice::sluice SHARED IMPORTED)
  set_target_properties(Sluice::sluice PROPERTIES
    IMPORTED_LOCATION "${_sluice_prefix}/lib/libsluice.so"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_sluice_prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()

unset(_sluice_prefix)
