"""Tests of the DynamoDB store."""
