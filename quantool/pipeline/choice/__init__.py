"""The choice by measurement: candidates, what stays in float, and the methods that are tried."""
