"""The official TOSA conformance suite (package ``tosa-tools``) with tosaic as the system under test."""
