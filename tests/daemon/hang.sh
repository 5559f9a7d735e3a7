#!/bin/sh
# A worker whose plan never comes, with a child that holds its pipes.
sleep 30 &
wait
