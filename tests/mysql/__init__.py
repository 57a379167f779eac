"""Tests of the store in MySQL and MariaDB."""
